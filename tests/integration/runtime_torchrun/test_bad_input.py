"""What bad input gets: one clear sentence at the end, no traceback, and nothing half-started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.integration.runtime_torchrun.conftest import PATIENCE, Job
from tests.support import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

Jobs = Callable[..., Job]


@pytest.fixture
def not_an_etcd() -> Iterator[str]:
    """The address of some other web server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello")

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_bad_flags_get_one_sentence(jobs: Jobs, not_an_etcd: str) -> None:
    job = jobs("1:1")
    cases = {
        job.start("a", rdzv_conf="lease-ttl=3"): "torchrun: --rdzv-conf: unknown key 'lease-ttl'; known are ca_cert, ",
        job.start("b", rdzv_endpoint=""): "torchrun: --rdzv-backend=etcd-v3 needs --rdzv-endpoint=HOST:PORT of an etcd",
        job.start("c", rdzv_endpoint=not_an_etcd): f"torchrun: no etcd 3.4 or newer at the endpoint: http://{not_an_etcd}: ",
        job.start("d", rdzv_endpoint="https://127.0.0.1:1", rdzv_conf="cacert=/nowhere.pem"): "torchrun: cacert /nowhere.pem: ",
    }
    for agent, sentence in cases.items():
        assert agent.exit_code() == 1
        last = agent.said.strip().splitlines()[-1]
        assert last.startswith(sentence), agent.said
        assert "Traceback" not in agent.said
        assert job.steps(agent.name) == []


def test_torchrun_and_elasticrun_refuse_each_other(jobs: Jobs) -> None:
    job = jobs("1:2")
    job.start("a", launcher="elasticjob_runtime")
    job.train("a")
    stranger = job.start("b")
    assert stranger.exit_code() == 1
    assert "torchrun: the job with this --rdzv-id is elasticrun's" in stranger.said
    job.train("a")

    other = jobs("1:2")
    other.start("a")
    other.train("a")
    stranger = other.start("b", launcher="elasticjob_runtime")
    assert stranger.exit_code() == 78
    eventually(lambda: other.steps("a")[-1].number > 1, PATIENCE)
    assert other.steps("a")[-1].world == 1
