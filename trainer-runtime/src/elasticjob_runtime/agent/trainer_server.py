"""Serves the progress protocol of Kubeflow Trainer to the worker processes, on the loopback interface.

Scripts that report to Kubeflow Trainer, above all those with Hugging Face's Trainer, then show their progress in the
job's status without a change: they find the server's URL and the file with its token in their environment.

HTTP by hand on the agent's event loop, because `http.server` would need a thread for each connection: one short request
at a time, with a limit on everything. What is not a valid request is answered and dropped.
"""

from __future__ import annotations

import functools
import hmac
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from elasticjob_runtime.agent.trainer_status import TrainerStatus
from elasticjob_runtime.contract import Env
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers import descriptors

logger = logging.getLogger(__name__)

MAX_HEAD = 8 * 1024
"""Request line and headers, bytes."""
MAX_BODY = 64 * 1024
"""256 metrics have 30 KB."""
MAX_CONNECTIONS = 8
"""A further one displaces the oldest."""
DISABLED = "DISABLE_KUBEFLOW_INTEGRATION"
"""transformers' own switch."""

_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    411: "Length Required", 413: "Content Too Large", 431: "Request Header Fields Too Large",
}  # fmt: skip


class RequestError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class TrainerServer:
    """Listens until `close`. Raises OSError if it cannot."""

    def __init__(
        self,
        event_loop: EventLoop,
        on_status: Callable[[TrainerStatus], None],
        environment: Mapping[str, str],
        folder: str,
    ) -> None:
        """`environment`: of the worker processes; `folder`: for the file with the token."""
        self._event_loop = event_loop
        self._on_status = on_status
        self._token = os.urandom(32).hex()
        self._path = path_of(environment)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
        self._listener.setblocking(False)
        self._acceptor = descriptors.Acceptor(self._listener)
        self._connections: dict[int, tuple[socket.socket, bytearray]] = {}
        """The oldest first."""
        token_file = Path(folder) / "trainer-token"
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(self._token)
        self.environment = {
            Env.TRAINER_SERVER_URL: f"http://127.0.0.1:{self._listener.getsockname()[1]}{self._path}",
            Env.TRAINER_SERVER_TOKEN: str(token_file),
            **without_proxy(environment),
        }
        """For the worker processes."""
        event_loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        for fd in list(self._connections):
            self._drop(fd)
        self._event_loop.remove_reader(self._listener.fileno())
        self._acceptor.close()
        self._listener.close()

    def _accept(self) -> None:
        for connection in self._acceptor.accept(MAX_CONNECTIONS):
            if len(self._connections) >= MAX_CONNECTIONS:
                self._drop(next(iter(self._connections)))
            fd = connection.fileno()
            self._connections[fd] = (connection, bytearray())
            self._event_loop.add_reader(fd, functools.partial(self._read, fd))

    def _read(self, fd: int) -> None:
        connection, received = self._connections[fd]
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        received += data
        try:
            body = body_of(bytes(received), self._path, self._token)
            if body is not None:
                status = TrainerStatus.parse(body)
                self._answer(fd, 200, body)
                self._on_status(status)
            elif not data:
                self._drop(fd)
        except RequestError as error:
            self._answer(fd, error.code, _failure(error.code, str(error)))
        except ValueError as error:
            self._answer(fd, 400, _failure(400, str(error)))

    def _answer(self, fd: int, code: int, body: bytes) -> None:
        head = (
            f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        try:
            self._connections[fd][0].send(head.encode() + body, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            logger.debug("a worker process did not take the answer to its progress: %s", error)
        self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._event_loop.remove_reader(fd)
        self._connections.pop(fd)[0].close()


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether worker processes with this environment should report here."""
    return Env.TRAINER_SERVER_URL not in environment and environment.get(DISABLED, "").upper() != "TRUE"


def path_of(environment: Mapping[str, str]) -> str:
    """As Kubeflow Trainer's, with the names of the ElasticJob."""
    namespace, name = environment.get(Env.JOB_NAMESPACE, "default"), environment.get(Env.JOB_NAME, "elasticjob")
    return f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status"


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep HTTP libraries from using a proxy for the loopback address, if a proxy is set."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in environment):
        return {}
    known = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    if any(address.strip() in ("127.0.0.1", "*") for address in known.split(",")):
        return {}
    exempt = f"{known},127.0.0.1" if known else "127.0.0.1"
    return {"no_proxy": exempt, "NO_PROXY": exempt}


def body_of(received: bytes, path: str, token: str) -> bytes | None:
    """The body of the request; None: it is not complete yet. Raises RequestError."""
    head, separator, rest = received.partition(b"\r\n\r\n")
    if len(head) > MAX_HEAD:
        raise RequestError(431, f"the request has more than {MAX_HEAD} bytes of headers")
    if not separator:
        return None
    lines = head.decode("latin-1").split("\r\n")
    method, _, target = lines[0].partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if not hmac.compare_digest(headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
        raise RequestError(401, "the token is missing or wrong")
    if target.partition(" ")[0] != path:
        raise RequestError(404, f"expected {path}")
    if method != "POST":
        raise RequestError(405, "expected POST")
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        raise RequestError(411, "expected Content-Length")
    if int(length) > MAX_BODY:
        raise RequestError(413, f"expected a body of at most {MAX_BODY} bytes")
    return rest[: int(length)] if len(rest) >= int(length) else None


def _failure(code: int, message: str) -> bytes:
    """An error as the Kubernetes API server reports it (metav1.Status)."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return json.dumps(status).encode()
