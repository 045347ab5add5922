"""Proxies, as kubectl finds them: https://pkg.go.dev/golang.org/x/net/http/httpproxy."""

from __future__ import annotations

import pytest
from elasticjob.cluster.http import ApiServer
from elasticjob.cluster.kubeconfig import ClusterAccess
from elasticjob.cluster.proxies import proxy_for
from elasticjob.errors import UnreachableError

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "excluded", "used"),
    [
        ("https://k8s.example", "", True),
        ("https://127.0.0.1:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("https://localhost", "", False),
        ("https://k8s.example", "*", False),
        ("https://k8s.example", "other, EXAMPLE", False),
        ("https://k8s.example", ".k8s.example", True),
        ("https://k8s.example", "*.example", False),
        ("https://notexample", "example", True),
        ("https://k8s.example:6443", "k8s.example:6443", False),
        ("https://k8s.example", "k8s.example:6443", True),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.2.0.0/16,invalid/x", True),
        ("https://10.1.2.3", "10.1.2.3", False),
        ("https://[fd00::1]", "fd00::/8", False),
    ],
)
def test_servers_that_no_proxy_names_are_reached_without_one(server: str, excluded: str, used: bool) -> None:
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": excluded}
    assert proxy_for(server, environment) == (PROXY if used else "")


def test_a_proxy_gets_the_user_of_its_url() -> None:
    api = ApiServer(ClusterAccess("http://k8s.example", proxy="http://ann:p%40ss@proxy:3128"))
    assert getattr(api._connections(), "proxy_headers") == {"proxy-authorization": "Basic YW5uOnBAc3M="}  # noqa: B009


def test_a_socks_proxy_is_refused_with_a_sentence() -> None:
    with pytest.raises(UnreachableError, match="cannot use the proxy socks5://proxy"):
        ApiServer(ClusterAccess("http://k8s.example", proxy="socks5://ann:secret@proxy:1080"))
