"""Endpoints as users write them."""

from __future__ import annotations

import pytest
from elasticjob_runtime.etcd import Endpoint, parse_endpoints
from elasticjob_runtime.etcd.endpoints import Rotation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("etcd:2379", [Endpoint("etcd", 2379)]),
        ("etcd", [Endpoint("etcd", 2379)]),
        (" a:1 , b:2,a:1,", [Endpoint("a", 1), Endpoint("b", 2)]),
        ("10.0.0.1:1", [Endpoint("10.0.0.1", 1)]),
        ("[::1]:2380", [Endpoint("::1", 2380)]),
        ("[fe80::1]", [Endpoint("fe80::1", 2379)]),
        ("::1", [Endpoint("::1", 2379)]),
        ("[fe80::1%eth0]:1", [Endpoint("fe80::1%eth0", 1)]),
        ("http://etcd:1", [Endpoint("etcd", 1)]),
        ("HTTPS://etcd/", [Endpoint("etcd", 2379, tls=True)]),
        ("https://[::1]:1,http://b", [Endpoint("::1", 1, tls=True), Endpoint("b")]),
    ],
)
def test_endpoints_are_parsed(text: str, expected: list[Endpoint]) -> None:
    assert list(parse_endpoints(text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no etcd endpoint given"),
        (" , ", "no etcd endpoint given"),
        ("etcd:port", "'etcd:port'"),
        ("etcd:70000", "'etcd:70000'"),
        ("etcd:0", "no usable port"),
        (":2379", "no usable host"),
        ("two words:1", "no usable host"),
        ("etcd:1/v3", "has a path"),
        ("http://etcd:1?x", "has a path"),
        ("ftp://etcd:1", "starts with ftp://"),
        ("[::1", "expected host:port"),
        ("a:b:c", "more than one colon"),
        ("http://etcd:2379:2379", "more than one colon"),
        ("10.0.0.1:2379:1", "more than one colon"),
        ("[etcd]:2379", "expected host:port"),
    ],
)
def test_an_invalid_endpoint_is_described_in_the_error(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_endpoints(text)


def test_a_password_in_an_endpoint_is_rejected_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="must not carry user or password") as caught:
        parse_endpoints("http://job:hunter2@etcd:2379")
    assert "hunter2" not in str(caught.value)


def test_the_protocol_setting_applies_to_endpoints_without_one() -> None:
    assert parse_endpoints("etcd:1", protocol="https") == (Endpoint("etcd", 1, tls=True),)
    with pytest.raises(ValueError, match="contradicts protocol=https"):
        parse_endpoints("http://etcd:1", protocol="https")
    with pytest.raises(ValueError, match="must be http or https"):
        parse_endpoints("etcd:1", protocol="grpc")


def test_an_endpoint_reads_as_a_url() -> None:
    assert str(Endpoint("::1", 1, tls=True)) == "https://[::1]:1"
    assert str(Endpoint("etcd")) == "http://etcd:2379"


def test_an_endpoint_is_used_until_it_fails() -> None:
    a, b, c = Endpoint("a"), Endpoint("b"), Endpoint("c")
    rotation = Rotation([a, b, c], first=1)
    assert rotation.current == b
    rotation.failed(b)
    rotation.failed(b)  # a second thread reports the same failure
    assert rotation.current == c
    rotation.failed(c)
    assert rotation.current == a


def test_clients_start_at_random_endpoints() -> None:
    endpoints = [Endpoint("a"), Endpoint("b"), Endpoint("c")]
    assert {Rotation(endpoints).current for _ in range(200)} == set(endpoints)
