"""The etcd that the operator makes, with the flags that it gives, on this machine: it must serve IPv4 and IPv6
alike."""

from __future__ import annotations

import socket
import subprocess
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from elasticjob_operator.resources.etcd import etcd_stateful_set

from hack.cluster.programs import program
from hack.support import eventually
from tests.integration.operator.process import free_port
from tests.unit.operator.builders import make_job


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_jobs_own_etcd_answers_over_ipv4_and_ipv6(tmp_path: Path) -> None:
    """Go takes a listener on 0.0.0.0 as one on every address, of both families."""
    (container,) = etcd_stateful_set(make_job(), "etcd:1")["spec"]["template"]["spec"]["containers"]
    client, peer = free_port(), free_port()
    flags = [flag.replace("2379", str(client)).replace("2380", str(peer)) for flag in container["command"][1:]]
    flags = [f"--data-dir={tmp_path}" if flag.startswith("--data-dir=") else flag for flag in flags]
    with subprocess.Popen([program("etcd"), *flags], stderr=subprocess.DEVNULL) as etcd:
        try:
            for host in ("127.0.0.1", "[::1]"):
                eventually(partial(answers, f"http://{host}:{client}/version"), what=f"an answer at {host}")
        finally:
            etcd.kill()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 our own
            return b"etcdserver" in answer.read()
    except OSError:
        return False
