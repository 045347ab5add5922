"""Nodes as the other end-to-end tests use them: real pods, real networks, and every kind of node failure."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack import cluster
from hack.cluster.oci import write_archive
from hack.cluster.programs import program
from hack.support import eventually
from tests.e2e.cluster.support import ETCD_SERVER, make_pod, make_service, node_status, pod_status, wait_for_phase

pytestmark = [
    pytest.mark.alone,
    pytest.mark.nightly,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes need root"),
]


@pytest.fixture(scope="module", autouse=True)
def nodes() -> list[str]:
    """The names of three running nodes."""
    cluster.up(nodes=3)
    return [node.name for node in cluster.status()]


@pytest.fixture(autouse=True)
def _no_pods() -> Iterator[None]:
    """Deletes each test's pods."""
    yield
    cluster.kubectl("delete", "pods,services", "--selector", "app", "--force", "--grace-period=0")


def test_a_service_name_resolves_across_nodes() -> None:
    make_service("server")
    make_pod("server", "node-1", ETCD_SERVER)
    make_pod(
        "client", "node-2", ["etcdctl", "--endpoints=http://server:2379", "put", "key", "value"], restart="OnFailure"
    )
    wait_for_phase("client", "Succeeded")
    assert cluster.kubectl("logs", "client").endswith("OK\n")
    assert cluster.kubectl("exec", "server", "--", "etcdctl", "get", "key") == "key\nvalue\n"


def test_outside_names_do_not_resolve() -> None:
    make_pod(
        "client", "node-1", ["etcdctl", "--endpoints=http://example.org:2379", "--command-timeout=1s", "get", "key"]
    )
    wait_for_phase("client", "Failed")
    assert "no such host" in cluster.kubectl("logs", "client")


def test_a_loaded_image_runs_on_every_node_and_reaches_the_api_server(nodes: list[str], tmp_path: Path) -> None:
    write_archive(
        tmp_path / "kubectl.tar", "localhost/kubectl:test", {"/usr/local/bin/kubectl": program("kubectl")}, ["kubectl"]
    )
    cluster.load_image(tmp_path / "kubectl.tar")
    for node in nodes[:3]:
        make_pod(f"on-{node}", node, ["kubectl", "auth", "whoami"], image="localhost/kubectl:test")
    for node in nodes[:3]:
        wait_for_phase(f"on-{node}", "Succeeded")
        assert "system:serviceaccount:default:default" in cluster.kubectl("logs", f"on-{node}")


def test_a_rebuilt_image_replaces_the_old_one_on_running_nodes(tmp_path: Path) -> None:
    for turn, tool in enumerate(["etcd", "kwok"]):
        write_archive(tmp_path / f"{tool}.tar", "localhost/tool:test", {"/tool": program(tool)}, ["/tool"])
        cluster.load_image(tmp_path / f"{tool}.tar")
        make_pod(f"pod-{turn}", "node-1", ["/tool", "--version"], image="localhost/tool:test")
        wait_for_phase(f"pod-{turn}", "Succeeded")
        assert cluster.kubectl("logs", f"pod-{turn}").lower().startswith(f"{tool} version")


def test_all_nodes_and_the_machine_share_one_directory() -> None:
    make_pod("writer", "node-1", ETCD_SERVER, data=str(cluster.SHARED_DIRECTORY))
    status = wait_for_phase("writer", "Running")
    database = cluster.SHARED_DIRECTORY / "etcd" / "member" / "snap" / "db"
    eventually(database.exists, what="the pod's file is on the machine")
    endpoint = f"--endpoints=http://{status['podIP']}:2379"
    make_pod(
        "saver", "node-2", ["etcdctl", endpoint, "snapshot", "save", "/data/saved"], data=str(cluster.SHARED_DIRECTORY)
    )
    wait_for_phase("saver", "Succeeded")
    assert (cluster.SHARED_DIRECTORY / "saved").stat().st_uid == 65532


def test_a_powered_off_node_falls_silent_and_recovers() -> None:
    make_pod("server", "node-2", ETCD_SERVER, restart="Always")
    status = wait_for_phase("server", "Running")
    with _connection(status["podIP"]) as connection:
        cluster.power_off("node-2")
        assert node_status("node-2").power == "off"
        eventually(lambda: not node_status("node-2").ready, what="node-2 is NotReady")
        with pytest.raises(TimeoutError):  # neither closed nor reset: its peers notice nothing
            connection.recv(1)
    cluster.power_on("node-2")
    assert node_status("node-2") == cluster.NodeStatus("node-2", "10.89.0.12", "on", connected=True, ready=True)
    eventually(
        lambda: _restarts("server") >= 1 and pod_status("server")["phase"] == "Running",
        what="its container was started again",
    )


def test_a_partitioned_node_keeps_running_and_heals() -> None:
    make_pod("server", "node-3", ETCD_SERVER, restart="Always")
    before = wait_for_phase("server", "Running")
    cluster.partition("node-3")
    assert not node_status("node-3").connected
    eventually(lambda: not node_status("node-3").ready, what="node-3 is NotReady")
    with pytest.raises(OSError, match=r"timed out|No route"):
        _connect(before["podIP"])
    cluster.heal("node-3")
    assert node_status("node-3").ready
    _connection(before["podIP"]).close()
    assert _restarts("server") == 0


def test_a_frozen_node_stops_until_it_is_thawed() -> None:
    make_pod("server", "node-1", ETCD_SERVER)
    status = wait_for_phase("server", "Running")
    with _connection(status["podIP"]) as connection:
        cluster.freeze("node-1")
        assert node_status("node-1").power == "frozen"
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: server\r\n\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)
        eventually(lambda: not node_status("node-1").ready, what="node-1 is NotReady")
        cluster.thaw("node-1")
        assert connection.recv(12) == b"HTTP/1.1 200"
    assert node_status("node-1").ready


def test_nodes_can_be_added_and_removed() -> None:
    name = cluster.add_node()
    make_pod("on-new-node", name, ["etcdctl", "version"])
    wait_for_phase("on-new-node", "Succeeded")
    cluster.remove_node(name)
    assert name not in [node.name for node in cluster.status()]
    assert name not in cluster.kubectl("get", "nodes", "--output", "name")


def test_an_unknown_node_is_a_clear_error() -> None:
    with pytest.raises(cluster.ClusterError, match="no node 'node-77'; there are: node-1, node-2, node-3"):
        cluster.power_off("node-77")


def test_a_file_that_is_not_an_image_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("no archive")
    with pytest.raises(cluster.ClusterError, match=r"text\.tar cannot be read"):
        cluster.load_image(tmp_path / "text.tar")


def _connection(address: str) -> socket.socket:
    """A connection to the etcd in a pod, once it listens."""

    def connected() -> socket.socket:
        try:
            return _connect(address)
        except OSError as error:
            raise AssertionError(f"no connection to {address}") from error

    return eventually(connected, what=f"a connection to {address}")


def _connect(address: str) -> socket.socket:
    connection = socket.create_connection((address, 2379), timeout=2)
    connection.settimeout(2)
    return connection


def _restarts(pod: str) -> int:
    return int(pod_status(pod)["containerStatuses"][0]["restartCount"])
