"""Bad input to real agents on a real etcd: one sentence, an exit code of its own, and nothing half-started."""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Sequence

import pytest
from elasticjob_runtime.contract import CONTRACT_VERSION, Env, ExitCode, MemberState, MemberValue, OutcomeState
from elasticjob_runtime.etcd.interface import Get, KeyRange

from hack.support import eventually
from tests.contract.etcd_servers import EtcdServer, enable_users
from tests.integration.runtime.agents import QUICK, SOURCE, Job

WRONG_FLAGS = {
    "more at least than at most": (("--nnodes", "4:2"), QUICK, "--nnodes=4:2: the minimum", ExitCode.USAGE),
    "an unknown backend": (("--rdzv-backend", "redis"), QUICK, "--rdzv-backend=redis: unknown backend", ExitCode.USAGE),
    "a key that nobody knows": ((), "lease=3", "--rdzv-conf: unknown key 'lease'", ExitCode.USAGE),
    "a certificate that is not there": (
        (),
        "protocol=https,cacert=nowhere.pem",
        "cacert nowhere.pem: cannot be used",
        ExitCode.USAGE,
    ),
    "a certificate that is none": (
        (),
        "protocol=https,cacert=junk.pem",
        "cacert junk.pem: cannot be used",
        ExitCode.USAGE,
    ),
    "a password file that is not there": (
        (),
        "user=jane,password_file=nowhere",
        "password_file nowhere: cannot be read",
        ExitCode.USAGE,
    ),
    "a number that is none": (("--max-restarts", "many"), QUICK, "invalid int value: 'many'", ExitCode.USAGE),
    "no workers": (("--nproc-per-node", "0"), QUICK, "--nproc-per-node=0: write a number", ExitCode.USAGE),
}


@pytest.mark.parametrize(("flags", "conf", "says", "code"), WRONG_FLAGS.values(), ids=WRONG_FLAGS)
def test_wrong_flags_start_nothing(job: Job, flags: Sequence[str], conf: str, says: str, code: ExitCode) -> None:
    (job.directory / "junk.pem").write_text("no certificate")
    agent = job.start("a", *flags, nnodes="1", conf=conf, endpoint=job.endpoint.removeprefix("http://"))
    assert agent.ends() == code
    assert len(agent.output.splitlines()) == 1, agent.output
    assert says in agent.output
    assert says in agent.termination_file.read_text(), "the pod's termination message"
    assert not job.client.range(Get(KeyRange.prefix(job.keys.root))).kvs, "it wrote to etcd"
    assert not list((job.directory / "workers").iterdir())


def test_a_traceback_is_there_for_who_asks(job: Job) -> None:
    agent = job.start("a", "--debug", nnodes="4:2")
    assert agent.ends() != 0
    assert "Traceback" in agent.output
    assert "--nnodes=4:2: the minimum" in agent.output


def stranger(**fields: object) -> str:
    value = MemberValue(address="127.0.0.1", ports=[1, 2, 3, 4], nproc=1, incarnation="x", state=MemberState.WARMING)
    text = value.to_json()
    for name, setting in fields.items():
        text = text.replace(f'"{name}":{getattr(value, name)}', f'"{name}":{setting}')
    return text


def test_an_agent_of_another_contract_version_is_told_so(job: Job) -> None:
    job.client.put(job.keys.member("older"), stranger(contract=CONTRACT_VERSION + 1))
    agent = job.start("a", nnodes="2")
    assert agent.ends() == ExitCode.CONFIG
    assert f"contract version {CONTRACT_VERSION}, the other members version {CONTRACT_VERSION + 1}" in agent.output
    assert "use the same version of elasticjob-runtime in all images" in agent.termination_file.read_text()
    assert "Traceback" not in agent.output
    assert "a" not in job.members, "its key is left behind"


def test_credentials_that_are_refused_are_in_the_termination_message(
    own_etcd: EtcdServer, tmp_path: pathlib.Path
) -> None:
    enable_users(own_etcd, {"jane": ("secret", "/ours/")})
    job = Job(own_etcd.url, tmp_path)
    try:
        agent = job.start("a", nnodes="1", conf="user=jane,password=secret,prefix=/theirs")
        assert agent.ends() == ExitCode.DENIED
        assert "/theirs" in agent.termination_file.read_text()
        wrong = job.start("b", nnodes="1", conf="user=jane,password=guessed")
        assert wrong.ends() == ExitCode.DENIED
        assert "guessed" not in wrong.output + wrong.termination_file.read_text()
    finally:
        job.close()


def test_a_module_that_is_missing_ends_the_job_and_says_so(job: Job) -> None:
    """The agent here sees the standard library only, so the worker finds out."""
    agent = job.start("a", "-m", nnodes="1", script=["nowhere.train"])
    assert agent.ends() == ExitCode.WORKERS_FAILED
    assert "No module named 'nowhere'" in agent.output
    outcome = job.outcome
    assert outcome is not None
    assert outcome.state is OutcomeState.FAILED


def test_an_endpoint_that_refuses_is_named_however_short_the_time(job: Job) -> None:
    agent = job.start("a", nnodes="1", endpoint="127.0.0.1:1", conf="join_timeout=1")
    assert agent.ends() == ExitCode.UNAVAILABLE
    assert "http://127.0.0.1:1: Connection refused" in agent.output.splitlines()[-1]
    assert "join_timeout" in agent.termination_file.read_text()


def test_the_termination_message_is_written_where_nothing_was(job: Job) -> None:
    path = job.directory / "new" / "folder" / "message"
    job.start("a", nnodes="1", environment={Env.TERMINATION_LOG: str(path)})
    job.trains(1)
    job.tell("a", "raise")
    eventually(lambda: path.exists() and "RuntimeError: told to fail" in path.read_text(), what="the message")


def test_a_machine_without_room_for_a_file_gets_one_sentence() -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    command = [sys.executable, "-m", "elasticjob_runtime", "--no-python", "true"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    run = subprocess.run(
        command, env=environment, preexec_fn=no_room, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == ExitCode.UNAVAILABLE
    assert "Traceback" not in run.stderr
    assert (
        "this machine does not let the agent start: [Errno 2] No usable temporary directory"
        in run.stderr.splitlines()[-1]
    )
