"""Streams of a watch and of logs, against a server on loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import email.utils
import json
import queue
import ssl
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from elasticjob.cluster.api_errors import ServerBusyError
from elasticjob.cluster.http import METADATA, ApiServer
from elasticjob.cluster.kubeconfig import ClusterAccess
from elasticjob.cluster.pod_logs import PodLog
from elasticjob.cluster.watching import Watched
from elasticjob.decisions.log_lines import Line
from elasticjob.decisions.log_selection import Selection
from elasticjob.errors import UnreachableError

from hack.support import eventually
from tests.contract.certificates import Pki

POD = {"metadata": {"name": "bert-worker-0", "namespace": "ml"}}
EVENT = json.dumps({"type": "MODIFIED", "object": {"metadata": {"annotations": {"padding": "x" * 60_000}}}}).encode()
"""Longer than a TLS record, so that a reader is often in the middle of one line."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Not on stderr."""

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that went away."""


@contextlib.contextmanager
def serving(handler: type[Handler], pki: Pki | None = None, *, ask: bool = False) -> Iterator[ClusterAccess]:
    """`ask`: for a client certificate."""
    with Quiet(("127.0.0.1", 0), handler) as server:
        scheme = "http"
        if pki is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pki.certificate("server"), pki.key("server"))
            if ask:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(pki.ca)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ClusterAccess(f"{scheme}://127.0.0.1:{server.server_port}", ca_file=pki.ca if pki else "")
        server.shutdown()


def test_a_stream_that_another_thread_closes_ends_without_an_error(tmp_path: Path) -> None:
    """Neither with an exception in the thread that reads it, nor with ciphertext as a line."""

    class Events(Handler):
        def do_GET(self) -> None:
            self.begin()
            with contextlib.suppress(OSError):
                while True:
                    self.chunk(EVENT + b"\n")

    with serving(Events, Pki(tmp_path / "pki")) as target:
        api = ApiServer(target)
        for _ in range(60):
            stream, wrong, first = api.stream("/watch"), list[object](), threading.Event()

            def read(
                stream: Iterable[bytes] = stream, wrong: list[object] = wrong, first: threading.Event = first
            ) -> None:
                try:
                    for line in stream:
                        first.set()
                        if line != EVENT:
                            wrong.append(line[:80])
                except Exception as error:  # noqa: BLE001 what a thread raises is printed, and lost
                    wrong.append(error)

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            assert first.wait(60)
            stream.close()
            reader.join(60)
            assert not reader.is_alive()
            assert wrong == []


Entry = tuple[str, str]
"""Time of a line, and its text; without a time, what the kubelet says itself."""


def read_twice(first: Sequence[Entry], later: Sequence[Entry] = (), selection: Selection | None = None) -> list[str]:
    """The lines of a followed log whose connection ends after `first`, and is opened again for the rest."""
    requests: list[dict[str, list[str]]] = []

    class Kubelet(Handler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            requests.append(query)
            self.begin()
            since = query.get("sinceTime", [""])[0].removesuffix("Z")
            for stamp, text in [*first, *(later if len(requests) > 1 else ())]:
                if not stamp or stamp >= since:
                    self.chunk(f"{stamp}Z {text}\n".encode() if stamp else f"{text}\n".encode())
            self.chunk(b"")

    lines: queue.Queue[Line] = queue.Queue()
    ended = threading.Event()
    with serving(Kubelet) as target:
        log = PodLog(ApiServer(target), POD, "trainer", selection or Selection(), lines, ended.set)
        eventually(lambda: len(requests) >= 2, what="a second request")
        log.gone = True
        assert ended.wait(60)
    return [lines.get_nowait().text for _ in range(lines.qsize())]


S1, S2, S3 = "2026-01-01T12:00:01.5", "2026-01-01T12:00:02.500000002", "2026-01-01T12:00:03.1"
BEHIND = "2026-01-01T11:00:00.5"


@pytest.mark.parametrize(
    ("first", "later"),
    [
        pytest.param([(S1, "a"), (S2, "b")], [(S3, "c")], id="a new line after a lost connection"),
        pytest.param([(S1, "a"), (S1, "a")], [(S1, "a"), (S2, "b")], id="twins"),
        pytest.param([(S2, "a"), ("2026-01-01T12:00:02.500000001", "b")], [(S3, "c")], id="older by a nanosecond"),
        pytest.param([(S2, "a"), (BEHIND, "b")], [("2026-01-01T11:00:01.5", "c")], id="a clock that was set back"),
        pytest.param([("", "cannot read the log"), ("", "at all")], [], id="without a time"),
        pytest.param([(S1, "a"), ("", "log rotated"), (S1, "b")], [(S1, "c"), ("", "again")], id="both"),
    ],
)
def test_a_followed_log_has_each_line_once(first: list[Entry], later: list[Entry]) -> None:
    assert read_twice(first, later) == [text for _, text in [*first, *later]]


def test_a_watch_that_ends_at_once_is_not_opened_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watches: list[str] = []

    class Ending(Handler):
        def do_GET(self) -> None:
            if "watch=1" in self.path:
                watches.append(self.path)
            self.answer(b'{"metadata": {"resourceVersion": "1"}, "items": []}' if "watch=1" not in self.path else b"")

    monkeypatch.setattr("elasticjob.cluster.watching.FIRST_RETRY", 3600.0)
    monkeypatch.setattr("elasticjob.cluster.watching.LAST_RETRY", 3600.0)
    with serving(Ending) as target, contextlib.closing(Watched(ApiServer(target), "/jobs", lambda: None)):
        eventually(lambda: watches)
        threading.Event().wait(0.5)
        assert len(watches) == 1


def test_an_api_server_that_is_slow_is_said() -> None:
    said = threading.Event()

    class Slow(Handler):
        def do_GET(self) -> None:
            assert said.wait(60)
            self.answer(b"{}")

    with serving(Slow) as target:
        assert ApiServer(target, on_slow=lambda _: said.set()).get("/version") == {}
    assert said.is_set()


def test_ages_are_those_of_the_api_server_s_clock() -> None:
    """This machine's clock may be wrong."""
    now, ahead = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(minutes=10)

    class Ahead(Handler):
        def do_GET(self) -> None:
            self.answer(b"{}")

        def date_time_string(self, timestamp: float | None = None) -> str:
            assert timestamp is None
            return email.utils.format_datetime(now + ahead, usegmt=True)

    with serving(Ahead) as target:
        api = ApiServer(target)
        api.get("/version")
    assert abs(api.now() - now - ahead) < datetime.timedelta(minutes=1)


def test_a_page_in_place_of_an_answer_is_said() -> None:
    class Login(Handler):
        def do_GET(self) -> None:
            self.answer(b"<html></html>")

    with serving(Login) as target, pytest.raises(UnreachableError, match="does not answer as an API server"):
        ApiServer(target).get("/jobs")


class Busy(Handler):
    """An API server that has enough of requests, for as long as `refused` says."""

    refused: ClassVar[list[int]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers["Accept"])
        status = self.refused.pop() if self.refused else 200
        later = {"Retry-After": "0"} if status == 429 else {}
        self.answer(b'{"items": []}' if status == 200 else b'{"message": "too many requests"}', status, **later)


def test_a_request_that_the_api_server_postpones_is_sent_again() -> None:
    Busy.asked.clear()
    Busy.refused[:] = [429, 429]
    with serving(Busy) as target:
        assert ApiServer(target).get("/jobs", accept=METADATA) == {"items": []}
    assert Busy.asked == [METADATA] * 3, "as the same request"


@pytest.mark.parametrize("statuses", [[503], [429] * 50])
def test_a_server_that_stays_busy_is_said(statuses: list[int]) -> None:
    Busy.refused[:] = statuses
    with serving(Busy) as target, pytest.raises(ServerBusyError, match="cannot answer now: too many requests"):
        ApiServer(target).get("/jobs")


def test_a_client_certificate_is_renewed_by_the_program_that_printed_it(tmp_path: Path) -> None:
    """By one run of it for many threads, and on new connections."""
    pki, seen = Pki(tmp_path / "pki"), list[str]()

    class Who(Handler):
        def do_GET(self) -> None:
            subject = self.connection.getpeercert()["subject"]
            seen.append(dict(pair for part in subject for pair in part)["commonName"])
            self.answer(b"{}")

    for name in ("first", "second"):
        pki.sign(name, f"/CN={name}", "extendedKeyUsage=clientAuth")
    files = {name: [pki.certificate(name), pki.key(name)] for name in ("first", "second")}
    runs = tmp_path / "runs"
    runs.touch()
    code = (
        "import json, pathlib, sys; runs, first, second = pathlib.Path(sys.argv[1]), sys.argv[2:4], sys.argv[4:6]; "
        "n = len(runs.read_text()); runs.write_text('x' * (n + 1)); "
        "cert, key = [pathlib.Path(each).read_text() for each in (second if n else first)]; "
        "until = '2999-01-01T00:00:00Z' if n else '2001-01-01T00:00:00Z'; "
        "print(json.dumps({'status': {'clientCertificateData': cert, 'clientKeyData': key, "
        "'expirationTimestamp': until}}))"
    )
    command = {"command": sys.executable, "args": ["-c", code, str(runs), *files["first"], *files["second"]]}
    with serving(Who, pki, ask=True) as target:
        api = ApiServer(dataclasses.replace(target, command=command))
        api.get("/a")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(api.get, ["/b"] * 8))
    assert (seen[0], set(seen[1:])) == ("first", {"second"})
    assert runs.read_text() == "xx"
