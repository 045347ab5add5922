"""Which proxy the way to an API server goes through, as kubectl, a Go program, reads the environment. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from elasticjob.errors import UnreachableError

PORTS = {"http": 80, "https": 443}


def proxy_for(server: str, environment: Mapping[str, str]) -> str:
    """Empty: none. This machine is always reached without one."""
    parts = urlsplit(server)
    proxy = _variable(environment, f"{parts.scheme}_proxy")
    host = (parts.hostname or "").lower()
    if not proxy or _is_excluded(host, parts.port or PORTS.get(parts.scheme, 0), _variable(environment, "no_proxy")):
        return ""
    return proxy


def usable(proxy: str) -> str:
    """Its URL. Raises UnreachableError for a kind of proxy that this client does not speak."""
    url = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(url).scheme not in PORTS:
        raise UnreachableError(
            f"This client cannot use the proxy {urlsplit(url).scheme}://{urlsplit(url).hostname}.",
            "Set an HTTP proxy in the kubeconfig (proxy-url) or in HTTPS_PROXY.",
        )
    return url


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name) or ""


def _is_excluded(host: str, port: int, rules: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(host, address, port, rule.strip().lower()) for rule in rules.split(",") if rule.strip())


def _matches(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int, rule: str) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name, colon, number = rule.rpartition(":")
    if colon and number.isdigit() and _address(rule) is None:
        if int(number) != port:
            return False
        rule = name
    if address is not None:
        return _address(rule.strip("[]")) == address
    rule = rule.removeprefix("*")
    return host.endswith(rule) if rule.startswith(".") else host == rule or host.endswith(f".{rule}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
