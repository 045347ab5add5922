"""Which endpoints jobs may use: the chart's `rendezvous.allowedEndpoints`. Pure; resolves no names.

A pattern is one of these, followed by `:port` or, for every port, by nothing:

    etcd.infra.svc        this name
    *.etcd.example.com    names with this ending; * matches any characters
    10.0.0.0/8            IP addresses in this network; also 10.1.2.3 and [fd00::/8]

A network never matches a name: the name would have to be resolved, and might resolve differently a moment later.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import ipaddress
import re

from elasticjob_runtime.etcd import parse_endpoints

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"[A-Za-z0-9*?]([-_.A-Za-z0-9*?]*[A-Za-z0-9*?])?")
_ALL = "*"


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    host: str | Network
    port: int | None
    """None: every port."""

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises ValueError."""
        host, port = _split(text)
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{text!r} has no usable port")
        number = int(port) if port else None
        try:
            return cls(ipaddress.ip_network(host), number)
        except ValueError:
            numeric = re.fullmatch(r"[0-9./:]+", host)
            if "/" in host or numeric or not _NAME.fullmatch(host):
                raise ValueError(
                    f"{text!r} is neither a name with or without *, nor a network such as 10.0.0.0/8"
                ) from None
        return cls(host.lower(), number)

    def matches(self, host: str, port: int) -> bool:
        if self.port not in (None, port):
            return False
        address = _address(host)
        if isinstance(self.host, str):
            # Names do not match IP addresses, which have many spellings.
            return self.host == _ALL or (address is None and fnmatch.fnmatchcase(host.lower(), self.host))
        return address is not None and address in self.host


def is_allowed(endpoint: str, patterns: tuple[Pattern, ...]) -> bool:
    """Whether a job may use that endpoint. Without patterns, any; with patterns, never an invalid one."""
    if not patterns:
        return True
    try:
        endpoints = parse_endpoints(endpoint)
    except ValueError:
        return False
    return all(any(pattern.matches(endpoint.host, endpoint.port) for pattern in patterns) for endpoint in endpoints)


def uses_tls(endpoint: str) -> bool:
    """Whether all addresses of an endpoint start with https://. Raises ValueError."""
    return all(parsed.tls for parsed in parse_endpoints(endpoint))


def _split(text: str) -> tuple[str, str]:
    """Host or network, and port."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":")
    if text.count(":") > 1:
        return text, ""
    host, _, port = text.partition(":")
    return host, port


def _address(host: str) -> Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
