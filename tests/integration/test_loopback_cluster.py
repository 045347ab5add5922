"""The control plane without nodes, and the plain etcd, that the other integration tests use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hack.cluster import ClusterError, ControlPlane, Etcd
from hack.cluster.settings import CHECKOUT
from hack.support import eventually

pytestmark = pytest.mark.nightly

POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "none"}]}}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap"}


def test_the_api_server_stores_objects(control_plane_server: ControlPlane) -> None:
    control_plane_server.kubectl("create", "configmap", "kept", "--from-literal=answer=42")
    read = json.loads(control_plane_server.kubectl("get", "configmap", "kept", "-o", "json"))
    assert read["data"] == {"answer": "42"}


def test_a_pod_stays_pending_until_the_test_acts_as_its_kubelet(control_plane_server: ControlPlane) -> None:
    kubectl = control_plane_server.kubectl
    kubectl("create", "-f", "-", stdin=json.dumps({**POD, "metadata": {"name": "acted"}}))
    assert kubectl("get", "pod", "acted", "-o", "jsonpath={.status.phase}") == "Pending"
    kubectl("patch", "pod", "acted", "--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Running"}}')
    assert kubectl("get", "pod", "acted", "-o", "jsonpath={.status.phase}") == "Running"


def test_the_garbage_collector_deletes_the_dependents_of_a_deleted_owner(control_plane_server: ControlPlane) -> None:
    kubectl = control_plane_server.kubectl
    owner = json.loads(
        kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps({**CONFIG, "metadata": {"name": "owner"}}))
    )
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    kubectl(
        "create", "-f", "-", stdin=json.dumps({**CONFIG, "metadata": {"name": "owned", "ownerReferences": [reference]}})
    )
    kubectl("delete", "configmap", "owner")
    eventually(
        lambda: kubectl("get", "configmap", "owned", "--ignore-not-found") == "", what="the owned ConfigMap is gone"
    )


def test_rbac_is_enforced(control_plane_server: ControlPlane) -> None:
    with pytest.raises(ClusterError, match="cannot list resource"):
        control_plane_server.kubectl("get", "pods", "--as", "system:serviceaccount:default:unknown")


def test_two_control_planes_share_nothing(control_plane_server: ControlPlane, tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as other:
        assert other.server != control_plane_server.server
        other.kubectl("create", "configmap", "only-here")
        assert control_plane_server.kubectl("get", "configmap", "only-here", "--ignore-not-found") == ""


def test_etcd_is_3_6_and_stores_keys(etcd_server: Etcd) -> None:
    etcd_server.etcdctl("put", "own/key", "value")
    assert etcd_server.etcdctl("get", "own/key", "--print-value-only") == "value\n"
    with urllib.request.urlopen(etcd_server.endpoint + "/version") as response:  # noqa: S310  http
        assert json.load(response)["etcdserver"].startswith("3.6.")


def test_etcd_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from hack.cluster import Etcd
etcd = Etcd(Path({str(tmp_path)!r}))
etcd.start()
print(etcd.children[0].pid, flush=True)
input()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        etcd_pid = int(parent.stdout.readline())
        os.kill(etcd_pid, 0)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    eventually(lambda: not Path(f"/proc/{etcd_pid}").exists(), what="etcd has ended")


def test_a_program_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where etcd needs a directory")
    with pytest.raises(ClusterError, match=r"etcd ended with status .*log: "):
        Etcd(tmp_path).start()
