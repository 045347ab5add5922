"""Probes hosts outside the group while etcd does not answer, to tell "etcd is unavailable" from "this group
is cut off".

Only an answer that has crossed the network counts:

- In a pod, bytes from the Kubernetes API server. While a member reaches the API server, the kubelet on its node most
  likely does too, so the operator replaces nothing. An accepted or refused connection proves nothing: kube-proxy
  answers for a Service without endpoints, and a service mesh's sidecar for any host. For the same reason etcd's own
  Service proves nothing.
- Outside Kubernetes, etcd's own host: it accepts a connection (etcd hangs) or refuses it (etcd has ended).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from elasticjob_runtime.event_loop import start_thread

logger = logging.getLogger(__name__)

TIMEOUT = 1.5
"""s to wait for the first answer."""

_REQUEST = b"GET /livez HTTP/1.0\r\n\r\n"
"""Sent without TLS and credentials: a TLS server answers it with a few bytes, which is enough."""


@dataclasses.dataclass(frozen=True, slots=True)
class OutsideHost:
    """A host outside the group."""

    host: str
    port: int
    must_speak: bool
    """Only bytes count as an answer, since a proxy may accept or refuse connections on its behalf."""


def outside_hosts(environment: Mapping[str, str], endpoints: Iterable[tuple[str, int]]) -> tuple[OutsideHost, ...]:
    """Returns the hosts to probe. `endpoints`: host and port of etcd's members."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if host:
        return (OutsideHost(host, int(port) if port.isascii() and port.isdigit() else 443, must_speak=True),)
    return tuple(OutsideHost(host, port, must_speak=False) for host, port in endpoints)


def probe_outside_in_background(asked: Sequence[OutsideHost], on_result: Callable[[bool], None]) -> None:
    """Probes on a new thread, which always calls `on_result`."""

    def run() -> None:
        try:
            answered = answers(asked)
        except OSError as error:  # such as no descriptor left: that proves nothing
            logger.warning("cannot probe hosts outside the group: %s", error)
            answered = False
        on_result(answered)

    if not start_thread(run, "outside"):
        on_result(False)


def answers(asked: Sequence[OutsideHost], timeout: float = TIMEOUT) -> bool:
    """Whether any of `asked` answers within `timeout` s. Names are resolved first, which may take longer. Raises
    OSError."""
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as connections:
        for host in asked:
            connection = _connect(host)
            if connection is not None:
                connections.enter_context(connection)
                selector.register(connection, selectors.EVENT_WRITE, host)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if _is_answer(selector, key):
                    return True
    return False


def _connect(host: OutsideHost) -> socket.socket | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        return None  # the name cannot be resolved: no answer
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    connection.connect_ex(address)
    return connection


def _is_answer(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    connection, host = key.fileobj, key.data
    assert isinstance(connection, socket.socket)
    if key.events & selectors.EVENT_WRITE:
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not host.must_speak and error in (0, errno.ECONNREFUSED):
            return True
        with contextlib.suppress(OSError):
            if not error:
                connection.send(_REQUEST)
                selector.modify(connection, selectors.EVENT_READ, host)
                return False
        selector.unregister(connection)
        return False
    selector.unregister(connection)
    with contextlib.suppress(OSError):
        return bool(connection.recv(64))
    return False
