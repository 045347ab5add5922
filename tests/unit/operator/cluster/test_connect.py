"""The proxy to the API server is that of the environment, as kubectl's."""

from __future__ import annotations

import pytest
from elasticjob_operator.cluster.connect import proxy_for


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_without_one_the_way_is_straight(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTP_PROXY", "http://for-http:3128")
    assert proxy_for("https://10.0.0.1:443") is None


def test_the_proxy_of_the_environment_is_taken(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "http://somebody:secret@proxy:3128")
    assert proxy_for("https://api.example.org:6443") == "http://somebody:secret@proxy:3128"


def test_but_not_where_it_says_so(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment.setenv("NO_PROXY", "10.0.0.1,.example.org")
    assert proxy_for("https://10.0.0.1:443") is None
    assert proxy_for("https://api.example.org:6443") is None
    assert proxy_for("https://10.0.0.2:443") == "http://proxy:3128"
