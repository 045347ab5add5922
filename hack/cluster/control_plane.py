"""The control plane of a cluster with nodes: plain processes in their own network namespace."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from . import cgroups, components
from .certificates import make_certificates
from .loopback import answers
from .output import run
from .processes import start_daemon, wait_for
from .programs import program
from .settings import CONTROL_PLANE_ADDRESS, CONTROL_PLANE_NAMESPACE, MODULE_FOLDER

SERVER = f"https://{CONTROL_PLANE_ADDRESS}:6443"
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380  # of the namespace's own loopback
GROUP = "control-plane"

KEEP_RUNNING = ("sh", "-c", 'while :; do "$0" "$@"; sleep 1; done')
"""Prefix of a command that restarts it whenever it exits. It is in the command's cgroup, and ends with it."""

COREFILE = f"""
cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {CONTROL_PLANE_ADDRESS}
    errors
    kubernetes {{
        kubeconfig KUBECONFIG
        pods insecure
        ttl 5
    }}
    # A name that did not exist a second ago may exist now: a job's Service is looked up as soon as it is created.
    cache 5 {{
        denial 9984 1
    }}
}}
.:53 {{
    bind {CONTROL_PLANE_ADDRESS}
    # No names exist outside of the cluster. NXDOMAIN says so; REFUSED would make programs retry.
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def start_control_plane(state: Path) -> None:
    """Starts everything in order and waits until the API server responds. Call `network.create` first."""
    make_certificates(state, f"{CONTROL_PLANE_ADDRESS}:6443", roles=("controller-manager", "scheduler"))
    _start(state, components.etcd(state / "etcd", ETCD_PORT, ETCD_PEER_PORT))
    start_api_server(state)
    everything = ["*", "bootstrap-signer-controller", "token-cleaner-controller"]
    flags = {"use-service-account-credentials": True}
    _start(
        state, components.controller_manager(state, state / "controller-manager.conf", everything, flags), again=True
    )
    _start(state, components.scheduler(state / "scheduler.conf"), again=True)
    kubectl(state, "apply", "--filename", str(MODULE_FOLDER / "bootstrap.yaml"))
    _start_dns(state)


def start_api_server(state: Path) -> None:
    """Starts the API server and waits until it answers; its data is in etcd."""
    _start(state, components.api_server(state, 6443, ETCD_PORT, {"advertise-address": CONTROL_PLANE_ADDRESS}))
    _wait(state, "kube-apiserver", lambda: server_is_ready(state))


def stop_api_server() -> None:
    """Kills the API server; everything else keeps running. Does nothing if it is down."""
    cgroups.kill(f"{GROUP}/kube-apiserver")


def api_server_is_running() -> bool:
    return bool(cgroups.processes(f"{GROUP}/kube-apiserver"))


def wait_for_service_accounts(state: Path) -> None:
    """Waits for the default service account, without which pods are rejected."""
    _wait(
        state,
        "kube-controller-manager",
        lambda: "default" in kubectl(state, "get", "serviceaccounts", "--output", "name"),
    )


def server_is_ready(state: Path) -> bool:
    try:
        context = ssl.create_default_context(cafile=str(state / "pki" / "ca.crt"))
    except FileNotFoundError:
        return False
    return answers(f"{SERVER}/readyz", context)


def is_running() -> bool:
    """Whether every program of the control plane is running."""
    return all(
        cgroups.processes(f"{GROUP}/{name}")
        for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns")
    )


def kubectl(state: Path, *arguments: str) -> str:
    return run([program("kubectl"), "--kubeconfig", state / "super-admin.conf", *arguments])


def _start_dns(state: Path) -> None:
    corefile = state / "Corefile"
    corefile.write_text(COREFILE.replace("KUBECONFIG", str(state / "super-admin.conf")))
    _start(state, [str(program("coredns")), "-conf", str(corefile)])


def _start(state: Path, command: Sequence[str], again: bool = False) -> None:
    """`again`: restart it when it exits, as a kubelet would. The scheduler exits if it finds its cache to be wrong,
    which happens when nodes or the API server come and go."""
    name = Path(command[0]).name
    command = [*KEEP_RUNNING, *command] if again else command
    start_daemon(command, state / "logs" / f"{name}.log", cgroups.create(f"{GROUP}/{name}"), CONTROL_PLANE_NAMESPACE)


def _wait(state: Path, name: str, ready: Callable[[], bool]) -> None:
    wait_for(ready, lambda: bool(cgroups.processes(f"{GROUP}/{name}")), name, state / "logs" / f"{name}.log")
