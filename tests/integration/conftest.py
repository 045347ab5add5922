"""Real servers for the integration tests, without root: an API server without kubelets, and a plain etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.loopback import ControlPlane, Etcd


@pytest.fixture(scope="session")
def control_plane_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server and etcd, with the garbage collector and namespace controllers. RBAC on, no nodes, no
    scheduler, no kubelet."""
    folder = tmp_path_factory.mktemp("control-plane")
    with ControlPlane(folder, controllers=["garbage-collector-controller", "namespace-controller"]) as server:
        yield server


@pytest.fixture(scope="session")
def control_plane(control_plane_server: ControlPlane) -> Path:
    """The administrator's kubeconfig of `control_plane_server`. Shared by the session: use a namespace of your own."""
    return control_plane_server.kubeconfig


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A plain etcd 3.6: one member, no TLS, no users."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def etcd(etcd_server: Etcd) -> str:
    """The endpoint of `etcd_server`, `http://127.0.0.1:<port>`. Shared by the session: use a key prefix of your
    own."""
    return etcd_server.endpoint
