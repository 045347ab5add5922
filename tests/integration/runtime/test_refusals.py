"""What bad input gets: one clear sentence and an exit code of its own, and nothing half-started."""

from __future__ import annotations

import http.server
import pathlib
import threading
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import ExitCode

from hack.cluster.processes import free_ports
from hack.support import eventually
from tests.contract.etcd_servers import EtcdServer, enable_users
from tests.integration.runtime.agents import Job


@pytest.fixture
def web_server() -> Iterator[str]:
    """Something that answers, and is no etcd."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            self.send_error(404)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def guarded(own_etcd: EtcdServer) -> EtcdServer:
    """An etcd with one user, who may do as she likes under /ours."""
    enable_users(own_etcd, {"jane": ("secret", "/ours/")})
    return own_etcd


def test_a_script_that_is_missing(job: Job) -> None:
    agent = job.start("a", nnodes="1", script=["nowhere.py"])
    assert agent.ends() == ExitCode.NO_SCRIPT
    assert "nowhere.py: no such script" in agent.output
    assert "Traceback" not in agent.output
    assert not job.members


def test_an_endpoint_where_nobody_is(job: Job) -> None:
    (port,) = free_ports(1)
    agent = job.start("a", nnodes="1", endpoint=f"127.0.0.1:{port}", conf="join_timeout=2,read_timeout=1")
    assert agent.ends() == ExitCode.UNAVAILABLE
    assert f"127.0.0.1:{port}" in agent.output
    assert "join_timeout" in agent.output
    assert "Traceback" not in agent.output


def test_an_endpoint_that_is_no_etcd(job: Job, web_server: str) -> None:
    agent = job.start("a", nnodes="1", endpoint=web_server)
    assert agent.ends() == ExitCode.UNAVAILABLE
    assert web_server in agent.output
    assert "HTTP 404 from BaseHTTP" in agent.output
    assert "Traceback" not in agent.output


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("user=jane,password=wrong", "password"),
        ("user=jane,password=secret,prefix=/theirs", "/theirs"),
        ("lease_ttl=5", "refuses"),
    ],
)
def test_credentials_that_are_refused(guarded: EtcdServer, tmp_path: pathlib.Path, conf: str, says: str) -> None:
    job = Job(guarded.url, tmp_path)
    try:
        agent = job.start("a", nnodes="1", conf=conf)
        assert agent.ends() == ExitCode.DENIED, agent.output
        assert says in agent.output.splitlines()[-1]
        assert "Traceback" not in agent.output
        assert "secret" not in agent.output
    finally:
        job.close()


def test_credentials_that_are_right(guarded: EtcdServer, tmp_path: pathlib.Path) -> None:
    job = Job(guarded.url, tmp_path)
    try:
        agent = job.start("a", nnodes="1", conf="user=jane,password=secret,prefix=/ours")
        eventually(lambda: "training" in agent.output, what=f"it trains; log:\n{agent.output}")
        job.finish()
        assert agent.ends() == ExitCode.SUCCEEDED
    finally:
        job.close()


def test_a_member_that_starts_another_number_of_workers(job: Job) -> None:
    job.start_all("a b")
    before = job.trains(2)
    misfit = job.start("c", "--nproc-per-node", "2")
    assert misfit.ends() == ExitCode.CONFIG
    assert "--nproc-per-node" in misfit.output
    plan = job.plan
    assert plan is not None
    assert plan.round == before[0].round, "the others were disturbed"


def test_members_that_never_fit_each_other_do_not_wait_for_ever(job: Job) -> None:
    first = job.start("a", nnodes="2")
    eventually(lambda: "a" in job.members, what="the first registers")
    misfit = job.start("b", "--nproc-per-node", "2", nnodes="2")
    assert misfit.ends() == ExitCode.CONFIG
    job.start("c", nnodes="2")
    job.trains(2)
    assert first.process.poll() is None


def test_too_few_members_end_after_the_join_timeout(job: Job) -> None:
    agent = job.start("a", nnodes="2", conf="join_timeout=1")
    assert agent.ends() == ExitCode.UNAVAILABLE
    assert "at least 2 needed" in agent.output


def test_a_program_that_cannot_be_started_is_a_failed_worker(job: Job) -> None:
    program = job.directory / "program"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    agent = job.start("a", "--no-python", nnodes="1", script=[str(program)])
    assert agent.ends() == ExitCode.WORKERS_FAILED
    assert "cannot start" in agent.output


def test_a_value_in_etcd_that_nobody_can_read_is_ignored(job: Job) -> None:
    job.client.put(job.keys.spec, "{not json")
    job.client.put(job.keys.member("stranger"), '{"state": "dancing"}')
    agents = job.start_all("a b", nnodes="2")
    job.trains(2)
    assert "cannot be read and is ignored" in agents[0].output + agents[1].output
    job.client.put(job.keys.failure(1, "stranger"), "[]")
    job.finish()
    assert [agent.ends() for agent in agents] == [0, 0], job.logs
