"""A real Kubernetes for tests, without Docker and without an image registry.

**Without root**, on free ports of 127.0.0.1 (the fixtures `control_plane` and `etcd` of tests/integration are made of
them):

    with ControlPlane(controllers=["garbage-collector-controller"]) as control_plane:
        ...   # .kubeconfig, .kubectl(...), .logs
    with Etcd() as etcd: ...                                                                # .endpoint

**As root**, a cluster with real kubelets, containers, Services and DNS; one per machine. Each function is also a
command, such as `python -m hack.cluster up`, and returns once its effect is visible:

    build()                          programs, Debian packages, images: takes minutes the first time, then no time
    up(nodes=3, fresh=False)         -> kubeconfig; keeps a healthy cluster, removes anything else first
    down()                           leaves nothing behind but logs
    status()                         -> [NodeStatus(name, address, power, connected, ready)]
    power_off(name), power_on(name)  pulls the plug: everything on it ends, silently
    partition(name), heal(name)      unplugs the network cable
    freeze(name), thaw(name)         stops every process
    stop_api_server(), start_api_server()
    kubectl(*arguments, stdin=None)  -> its output, as administrator
    load_image(archive)              loads an OCI or Docker archive into every present and future node

Nodes are called node-1, node-2, ... The kubeconfig is KUBECONFIG (.cluster/kubeconfig); .cluster/bin has kubectl, helm,
etcdctl, ctr and kwok; logs are below .cluster/logs. A hostPath volume on SHARED_DIRECTORY is one folder for all nodes
and the machine. The images `localhost/pause:1` and ETCD_IMAGE are on every node. Pods reach each other, Services and
the API server, and the machine at HOST_ADDRESS; the machine reaches pods, and CoreDNS at CONTROL_PLANE_ADDRESS.
Failures are ClusterError (or StepError of hack.steps, from a build).
"""

from .images import ETCD as ETCD_IMAGE
from .lifecycle import (
    NodeStatus,
    build,
    down,
    freeze,
    heal,
    kubectl,
    load_image,
    partition,
    power_off,
    power_on,
    start_api_server,
    status,
    stop_api_server,
    thaw,
    up,
)
from .loopback import ControlPlane, Etcd
from .output import ClusterError
from .settings import CONTROL_PLANE_ADDRESS, HOST_ADDRESS, KUBECONFIG, SHARED_DIRECTORY

__all__ = [
    "CONTROL_PLANE_ADDRESS",
    "ETCD_IMAGE",
    "HOST_ADDRESS",
    "KUBECONFIG",
    "SHARED_DIRECTORY",
    "ClusterError",
    "ControlPlane",
    "Etcd",
    "NodeStatus",
    "build",
    "down",
    "freeze",
    "heal",
    "kubectl",
    "load_image",
    "partition",
    "power_off",
    "power_on",
    "start_api_server",
    "status",
    "stop_api_server",
    "thaw",
    "up",
]
