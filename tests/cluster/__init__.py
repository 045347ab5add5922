"""A real Kubernetes for tests, without Docker and without an image registry.

Without root, on free ports of 127.0.0.1 (`tests.cluster.loopback`; the fixtures `control_plane` and `etcd` in tests/integration use them):

    with ControlPlane(controllers=["garbage-collector-controller"]) as control_plane: ...   # .kubeconfig, .kubectl(...), .logs
    with Etcd() as etcd: ...                                                                # .endpoint
"""

from .loopback import ControlPlane, Etcd
from .output import ClusterError

__all__ = ["ClusterError", "ControlPlane", "Etcd"]
