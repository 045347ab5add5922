"""Addresses of etcd members: how to parse them, and which one to use next."""

from __future__ import annotations

import dataclasses
import random
import socket
import threading
from collections.abc import Sequence

DEFAULT_PORT = 2379


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int = DEFAULT_PORT
    tls: bool = False

    @property
    def authority(self) -> str:
        """host:port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


def parse_endpoints(text: str, *, protocol: str = "") -> tuple[Endpoint, ...]:
    """Parses "host:port[,host:port]"; each part may be a URL (http:// or https://), a name, or an IPv4 or IPv6 address
    ([::1]:2379 or ::1).

    `protocol` ("http" or "https") applies to endpoints without one; empty: http. Raises ValueError if `text` contains
    no valid endpoint, or an invalid one.
    """
    if protocol not in {"", "http", "https"}:
        raise ValueError(f"protocol is {protocol!r}; it must be http or https")
    endpoints = [_parse_endpoint(part.strip(), protocol) for part in text.split(",") if part.strip()]
    if not endpoints:
        raise ValueError("no etcd endpoint given; expected host:port, or several separated by commas")
    return tuple(dict.fromkeys(endpoints))


def _parse_endpoint(text: str, protocol: str) -> Endpoint:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = protocol or "http", text
    scheme = scheme.lower()
    if "@" in rest:
        raise ValueError(
            "an etcd endpoint must not carry user or password; give them as user and password (or password_file)"
        )
    if scheme not in {"http", "https"}:
        raise ValueError(f"etcd endpoint {text!r} starts with {scheme}://; expected http:// or https://")
    if separator and protocol and scheme != protocol:
        raise ValueError(f"etcd endpoint {text!r} contradicts protocol={protocol}")
    if rest.endswith("/"):
        rest = rest[:-1]
    if "/" in rest or "?" in rest or "#" in rest:
        raise ValueError(f"etcd endpoint {text!r} has a path; expected host:port alone")
    host, port = _split_port(rest)
    if (":" in host or rest.startswith("[")) and not _is_ipv6(host):
        what = "brackets" if rest.startswith("[") else "more than one colon"
        raise ValueError(
            f"etcd endpoint {text!r} has {what} and is not an IPv6 address; expected host:port or [IPv6]:port"
        )
    if not host or any(c.isspace() for c in rest) or any(c in host for c in "[]"):
        raise ValueError(f"etcd endpoint {text!r} has no usable host; expected host:port")
    if port and not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise ValueError(f"etcd endpoint {text!r} has no usable port; expected host:port with a port from 1 to 65535")
    return Endpoint(host.lower(), int(port) if port else DEFAULT_PORT, scheme == "https")


def _split_port(text: str) -> tuple[str, str]:
    """Splits "a:1", "[::1]:1", "::1" or "a" into host and port, both as text."""
    if text.startswith("["):
        host, end, rest = text[1:].partition("]")
        return (host, rest[1:]) if end and rest[:1] in {"", ":"} else ("", "")
    if text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _is_ipv6(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return False
    return True


class Rotation:
    """The endpoint to use: all threads share one until a call to it fails.

    Starts at a random endpoint, so that the clients of a job spread over the members. Thread-safe.
    """

    def __init__(self, endpoints: Sequence[Endpoint], first: int | None = None) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint given")
        self._endpoints = tuple(endpoints)
        self._index = random.randrange(len(endpoints)) if first is None else first  # noqa: S311 - spreads load, guards nothing
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._endpoints

    @property
    def current(self) -> Endpoint:
        return self._endpoints[self._index]

    def failed(self, endpoint: Endpoint) -> None:
        """Moves to the next endpoint, unless another thread has already done so."""
        with self._lock:
            if self.current == endpoint:
                self._index = (self._index + 1) % len(self._endpoints)
