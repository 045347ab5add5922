"""The server for Kubeflow's progress protocol, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticjob_runtime.agent.trainer_server import (
    MAX_BODY,
    MAX_CONNECTIONS,
    RequestError,
    TrainerServer,
    body_of,
    is_wanted,
    without_proxy,
)
from elasticjob_runtime.agent.trainer_status import TrainerStatus
from elasticjob_runtime.event_loop import EventLoop
from hypothesis import given
from hypothesis import strategies as st

from hack.support import eventually

ENVIRONMENT = {"ELASTICJOB_NAME": "digits", "ELASTICJOB_NAMESPACE": "ml"}
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs/digits/status"
REPORT = json.dumps({"trainerStatus": {"progressPercentage": 45}}).encode()


class Bench:
    """A server whose event loop runs on a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.reports: list[TrainerStatus] = []
        self._loop = EventLoop()
        self.server = TrainerServer(self._loop, self.reports.append, ENVIRONMENT, str(folder))
        self.url = self.server.environment["KUBEFLOW_TRAINER_SERVER_URL"]
        self.token_file = Path(self.server.environment["KUBEFLOW_TRAINER_SERVER_TOKEN"])
        self.token = self.token_file.read_text()
        self.port = int(urllib.parse.urlsplit(self.url).port or 0)
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            self._loop.wait(None)

    def close(self) -> None:
        self._over = True
        self._loop.call_soon(self.server.close)
        self._thread.join()
        self._loop.close()

    def post(self, body: bytes = REPORT, *, token: str | None = None, path: str = PATH, method: str = "POST") -> int:
        """The status code. The answer is the report, or says what is wrong as the Kubernetes API does."""
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert answer == json.loads(body) if response.status == 200 else answer["kind"] == "Status"
        return response.status

    def raw(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        connection.sendall(data)
        return connection


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_a_report_with_the_token_arrives(bench: Bench) -> None:
    assert bench.post() == 200
    eventually(lambda: bench.reports == [TrainerStatus(percent=45)], what="the report")


def test_the_url_names_the_job_and_is_only_reachable_from_this_machine(bench: Bench) -> None:
    assert bench.url == f"http://127.0.0.1:{bench.port}{PATH}"


def test_only_this_user_can_read_the_token(bench: Bench) -> None:
    assert stat.S_IMODE(os.stat(bench.token_file).st_mode) == 0o600


@pytest.mark.parametrize(
    ("send", "code"),
    [
        pytest.param(lambda bench: bench.post(token="wrong"), 401, id="wrong token"),
        pytest.param(lambda bench: bench.post(token=""), 401, id="no token"),
        pytest.param(lambda bench: bench.post(path="/apis"), 404, id="another path"),
        pytest.param(lambda bench: bench.post(method="PUT"), 405, id="another method"),
        pytest.param(lambda bench: bench.post(b"{"), 400, id="broken JSON"),
        pytest.param(lambda bench: bench.post(b"[" * 10_000), 400, id="nested"),
        pytest.param(lambda bench: bench.post(b"x" * (MAX_BODY + 1)), 413, id="too long"),
    ],
)
def test_what_is_no_report_is_answered_with_an_error_and_costs_nothing(
    bench: Bench, send: Callable[[Bench], int], code: int
) -> None:
    with contextlib.suppress(ConnectionError):  # closed before all of a long body was sent
        assert send(bench) == code
    assert bench.reports == []
    assert bench.post() == 200


@pytest.mark.parametrize(
    "data", [b"\x00" * 100_000, b"GET / HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"POST", os.urandom(20_000)]
)
def test_bytes_that_are_no_request_do_not_stop_the_server(bench: Bench, data: bytes) -> None:
    with contextlib.suppress(OSError):
        bench.raw(data).close()
    assert bench.post() == 200


def test_silent_connections_displace_only_each_other(bench: Bench) -> None:
    silent = [bench.raw(b"POST ") for _ in range(3 * MAX_CONNECTIONS)]
    assert bench.post() == 200
    for connection in silent:
        connection.close()
    assert bench.post() == 200


def test_a_report_may_arrive_in_pieces(bench: Bench) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=5)
    connection.putrequest("POST", PATH)
    connection.putheader("Authorization", f"Bearer {bench.token}")
    connection.putheader("Content-Length", str(len(REPORT)))
    connection.endheaders()
    for byte in REPORT:
        connection.send(bytes([byte]))
    assert connection.getresponse().status == 200
    connection.close()


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_raise_a_request_error(data: bytes) -> None:
    try:
        body_of(data, PATH, "token")
    except RequestError:
        return


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, True),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://a.real.trainer"}, False),
        ({"DISABLE_KUBEFLOW_INTEGRATION": "true"}, False),
    ],
)
def test_a_url_of_the_pods_own_or_transformers_switch_turns_it_off(environment: dict[str, str], expected: bool) -> None:
    assert is_wanted(environment) is expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"http_proxy": "http://proxy"}, "127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy", "NO_PROXY": ".svc"}, ".svc,127.0.0.1"),
        ({"http_proxy": "http://proxy", "no_proxy": "localhost, 127.0.0.1"}, None),
        ({"http_proxy": "http://proxy", "no_proxy": "*"}, None),
    ],
)
def test_reports_are_not_sent_to_a_proxy(environment: dict[str, str], expected: str | None) -> None:
    assert without_proxy(environment).get("no_proxy") == expected
