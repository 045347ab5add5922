"""Invalid settings are reported in one clear sentence, without a traceback, and nothing is started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.torchrun.handler import SettingsError
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

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


@pytest.mark.parametrize(
    ("endpoint", "conf", "sentence"),
    [
        ("", {}, "--rdzv-backend=etcd-v3 needs --rdzv-endpoint=HOST:PORT of an etcd"),
        ("https://127.0.0.1:1", {"cacert": "/nowhere.pem"}, "cacert /nowhere.pem: cannot be used as a CA certificate"),
        ("127.0.0.1:1", {"cacert": "/nowhere.pem"}, "add protocol=https"),
        ("127.0.0.1:1", {"user": "me"}, "give either password or password_file"),
        ("127.0.0.1:1", {"lease_ttl": "soon"}, "lease_ttl=soon is not a number of seconds"),
        ("127.0.0.1:port", {}, "has no usable port"),
    ],
    ids=["no endpoint", "missing CA file", "CA without https", "user without a password", "not a number", "not a port"],
)
def test_invalid_settings_are_rejected_before_anything_is_sent(
    endpoint: str, conf: dict[str, str], sentence: str
) -> None:
    with pytest.raises(SettingsError) as error:
        get_rendezvous_handler(RendezvousParameters("etcd-v3", endpoint, "run", 1, 1, **conf))
    assert sentence in str(error.value)
