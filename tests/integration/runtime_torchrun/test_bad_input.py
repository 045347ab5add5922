"""Invalid settings are reported in one clear sentence, without a traceback, and nothing is started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.integration.runtime_torchrun.conftest import Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

Jobs = Callable[..., Job]


@pytest.fixture
def not_an_etcd() -> Iterator[str]:
    """The address of a web server that is not an etcd."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello"
                    )

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_invalid_settings_are_reported_in_one_sentence(jobs: Jobs, not_an_etcd: str) -> None:
    job = jobs("1:1")
    cases = {
        job.start(
            "a", rdzv_conf="lease-ttl=3"
        ): "torchrun: --rdzv-conf: unknown key 'lease-ttl' (did you mean lease_ttl?); valid keys: ca_cert, ",
        job.start(
            "b", rdzv_endpoint=not_an_etcd
        ): f"torchrun: no etcd 3.4 or newer at the endpoint: http://{not_an_etcd}: ",
    }
    for agent, sentence in cases.items():
        assert agent.exit_code() == 1
        last = agent.output.strip().splitlines()[-1]
        assert last.startswith(sentence), agent.output
        assert "Traceback" not in agent.output
        assert job.steps(agent.name) == []
