"""The cluster leaves no trace, whatever happened to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack import cluster
from hack.cluster.settings import CHECKOUT
from tests.e2e.cluster.support import ETCD_SERVER, assert_nothing_remains, make_pod, remains, wait_for_phase

pytestmark = [
    pytest.mark.alone,
    pytest.mark.nightly,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes need root"),
]


@pytest.fixture(scope="module")
def before() -> Iterator[dict[str, set[str]]]:
    """The machine's state without a cluster. A cluster that was up is started again at the end, empty."""
    was_up = []
    with contextlib.suppress(cluster.ClusterError):
        was_up = cluster.status()
    cluster.build()
    cluster.down()
    yield remains()
    cluster.down()
    if was_up:
        cluster.up(nodes=len(was_up))


def test_down_leaves_nothing_behind_even_of_a_broken_cluster(before: dict[str, set[str]]) -> None:
    cluster.up(nodes=3)
    make_pod("server", "node-1", ETCD_SERVER)
    wait_for_phase("server", "Running")
    there = remains(before)
    assert all(there.values()), there  # the check can see what it looks for
    cluster.freeze("node-1")
    cluster.partition("node-2")
    cluster.power_off("node-3")
    cluster.down()
    assert_nothing_remains(before)


def test_a_second_up_keeps_a_healthy_cluster(before: dict[str, set[str]]) -> None:
    del before
    cluster.up(nodes=1)
    cluster.kubectl("create", "configmap", "kept")
    cluster.up(nodes=2)
    assert cluster.kubectl("get", "configmap", "kept", "--output", "name") == "configmap/kept\n"
    assert [node.name for node in cluster.status() if node.ready] == ["node-1", "node-2"]


def test_up_works_after_a_killed_up(before: dict[str, set[str]]) -> None:
    for seconds in (0.6, 2.5, 6.0):  # about: in the clean-up, in the control plane, in the nodes
        command = [sys.executable, "-m", "hack.cluster", "up", "--fresh", "--nodes=2"]
        up = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        up.send_signal(signal.SIGKILL)
        up.wait()
    cluster.up(nodes=2)
    assert [node.ready for node in cluster.status()] == [True, True]
    cluster.down()
    assert_nothing_remains(before)


def test_the_cluster_of_another_checkout_is_taken_down(before: dict[str, set[str]], tmp_path: Path) -> None:
    cluster.up(nodes=1)
    shutil.copytree(CHECKOUT / "hack", tmp_path / "hack", ignore=shutil.ignore_patterns("__pycache__"))
    other = [sys.executable, "-m", "hack.cluster"]
    said = subprocess.run([*other, "up", "--nodes=1"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert f"the cluster of {CHECKOUT}" in " ".join(said.split())
    assert not cluster.KUBECONFIG.exists()
    with pytest.raises(cluster.ClusterError, match=f"is of {tmp_path}"):
        cluster.add_node()
    subprocess.run([*other, "down"], cwd=tmp_path, check=True)
    assert_nothing_remains(before)


def test_down_without_a_cluster_is_harmless(before: dict[str, set[str]]) -> None:
    cluster.down()
    cluster.down()
    assert_nothing_remains(before)
