"""Invalid input is reported in one clear sentence with an exit code of its own, and nothing is started."""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from elasticjob_runtime.contract import CONTRACT_VERSION, ExitCode, MemberState, MemberValue, OutcomeState
from elasticjob_runtime.etcd.interface import Get, KeyRange

from hack.support import eventually
from tests.contract.etcd_servers import EtcdServer, enable_users, require_etcd
from tests.integration.runtime.agents import QUICK, SOURCE, Job


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd with one user, who may read and write under /ours."""
    server = EtcdServer(require_etcd("3.6"), tmp_path_factory.mktemp("guarded"), flags=["--bcrypt-cost", "4"]).start()
    enable_users(server, {"jane": ("secret", "/ours/")})
    yield server
    server.stop()


REJECTED_CREDENTIALS = {
    "wrong password": ("user=jane,password=guessed", "password"),
    "prefix without permission": ("user=jane,password=secret,prefix=/theirs", "/theirs"),
    "no user": ("lease_ttl=5", "refuses"),
}


@pytest.mark.parametrize(("conf", "says"), REJECTED_CREDENTIALS.values(), ids=REJECTED_CREDENTIALS)
def test_rejected_credentials_end_the_agent_at_once(
    guarded: EtcdServer, tmp_path: pathlib.Path, conf: str, says: str
) -> None:
    job = Job(guarded.url, tmp_path)
    try:
        agent = job.start("a", nnodes="1", conf=conf)
        assert agent.exit_code() == ExitCode.DENIED, agent.output
        message = agent.termination_file.read_text()
        assert says in agent.output.splitlines()[-1]
        assert says in message
        assert "Traceback" not in agent.output
        written = (agent.output + message).replace("/agents-secret", "")  # the name of a key
        assert not [word for word in ("secret", "guessed") if word in written]
    finally:
        job.close()


def test_an_incompatible_member_does_not_keep_the_others_from_training(job: Job) -> None:
    first = job.start("a", nnodes="2")
    eventually(lambda: "a" in job.members, what="the first member registers")
    incompatible = job.start("b", "--nproc-per-node", "2", nnodes="2")
    assert incompatible.exit_code() == ExitCode.CONFIG
    job.start("c", nnodes="2")
    job.wait_for_training(2)
    assert first.process.poll() is None


def test_too_few_members_give_up_after_the_join_timeout(job: Job) -> None:
    agent = job.start("a", nnodes="2", conf="join_timeout=1")
    assert agent.exit_code() == ExitCode.UNAVAILABLE
    assert "at least 2 needed" in agent.output


def test_a_program_that_cannot_start_counts_as_a_failed_worker_process(job: Job) -> None:
    program = job.directory / "program"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    agent = job.start("a", "--no-python", nnodes="1", script=[str(program)])
    assert agent.exit_code() == ExitCode.WORKERS_FAILED
    assert "cannot start" in agent.output


INVALID_FLAGS = {
    "minimum above the maximum": (("--nnodes", "4:2"), QUICK, "--nnodes=4:2: the minimum"),
    "not a number": (("--max-restarts", "many"), QUICK, "invalid int value: 'many'"),
    "invalid CA certificate": ((), "protocol=https,cacert=junk.pem", "cacert junk.pem: cannot be used"),
    "missing folder of credentials": ((), "credentials=nowhere", "credentials nowhere: has none of the files ca.crt"),
    "missing password file": ((), "user=jane,password_file=nowhere", "password_file nowhere: cannot be read"),
}
"""One of each kind; tests/unit/runtime/cli/test_options.py has the others."""


@pytest.mark.parametrize(("flags", "conf", "says"), INVALID_FLAGS.values(), ids=INVALID_FLAGS)
def test_invalid_flags_are_rejected_before_anything_starts(
    job: Job, flags: Sequence[str], conf: str, says: str
) -> None:
    (job.directory / "junk.pem").write_text("no certificate")
    agent = job.start("a", *flags, nnodes="1", conf=conf, endpoint=job.endpoint.removeprefix("http://"))
    assert agent.exit_code() == ExitCode.USAGE
    assert len(agent.output.splitlines()) == 1, agent.output
    assert says in agent.output
    assert says in agent.termination_file.read_text(), "the pod's termination message"
    assert not job.client.range(Get(KeyRange.prefix(job.keys.root))).kvs, "it wrote to etcd"
    assert not list((job.directory / "workers").iterdir())


def member_value(**fields: object) -> str:
    value = MemberValue(address="127.0.0.1", ports=[1, 2, 3, 4], nproc=1, incarnation="x", state=MemberState.WARMING)
    text = value.to_json()
    for name, setting in fields.items():
        text = text.replace(f'"{name}":{getattr(value, name)}', f'"{name}":{setting}')
    return text


def test_an_agent_with_another_contract_version_is_rejected_naming_both_versions(job: Job) -> None:
    job.client.put(job.keys.member("other"), member_value(contract=CONTRACT_VERSION + 1))
    agent = job.start("a", nnodes="2")
    assert agent.exit_code() == ExitCode.CONFIG
    assert f"contract version {CONTRACT_VERSION}, the other members version {CONTRACT_VERSION + 1}" in agent.output
    assert "use the same version of elasticjob-runtime in all images" in agent.termination_file.read_text()
    assert "Traceback" not in agent.output
    assert "a" not in job.members, "the agent left its key behind"


def test_a_missing_module_fails_the_job_and_is_named(job: Job) -> None:
    """The agent sees the standard library only, so it is the worker process that fails."""
    agent = job.start("a", "-m", nnodes="1", script=["nowhere.train"])
    assert agent.exit_code() == ExitCode.WORKERS_FAILED
    assert "No module named 'nowhere'" in agent.output
    outcome = job.outcome
    assert outcome is not None
    assert outcome.state is OutcomeState.FAILED


def test_an_unreachable_endpoint_is_named_after_the_join_timeout(job: Job) -> None:
    agent = job.start("a", nnodes="1", endpoint="127.0.0.1:1", conf="join_timeout=1")
    assert agent.exit_code() == ExitCode.UNAVAILABLE
    assert "http://127.0.0.1:1: Connection refused" in agent.output.splitlines()[-1]
    assert "Traceback" not in agent.output
    assert "join_timeout" in agent.termination_file.read_text()


def test_a_full_disk_is_reported_in_one_sentence() -> None:
    def allow_no_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    command = [sys.executable, "-m", "elasticjob_runtime", "--no-python", "true"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    run = subprocess.run(
        command, env=environment, preexec_fn=allow_no_files, capture_output=True, text=True, check=False
    )
    assert run.returncode == ExitCode.UNAVAILABLE
    assert "Traceback" not in run.stderr
    assert (
        "the agent cannot start on this machine: [Errno 2] No usable temporary directory" in run.stderr.splitlines()[-1]
    )
