"""The command lines of the control plane's programs, as data: `key -> value` becomes `--key=value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .programs import program
from .settings import POD_RANGE, SERVICE_RANGE

GANGS = {
    "kube-apiserver": "GenericWorkload=true,GangScheduling=true",
    "kube-controller-manager": "GenericWorkload=true",
    "kube-scheduler": "GenericWorkload=true,GangScheduling=true",
}
"""Feature gates of gang scheduling, which is alpha in Kubernetes 1.36."""


def command(name: str, flags: Mapping[str, object]) -> list[str]:
    """`command("etcd", {"data-dir": "/x"})` -> `[".../bin/etcd", "--data-dir=/x"]`. Booleans become true and false."""
    words = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in flags.items()}
    return [str(program(name)), *(f"--{key}={value}" for key, value in words.items())]


def etcd(data: Path, client_port: int, peer_port: int) -> list[str]:
    """A single member that serves plain HTTP on loopback: reachable only from this machine or its network namespace."""
    peer = f"http://127.0.0.1:{peer_port}"
    flags = {
        "name": "test",
        "data-dir": data,
        "unsafe-no-fsync": True,  # a test's data need not survive a crash of the machine
        "listen-client-urls": f"http://127.0.0.1:{client_port}",
        "advertise-client-urls": f"http://127.0.0.1:{client_port}",
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"test={peer}",
        "log-level": "warn",
    }
    return command("etcd", flags)


def api_server(folder: Path, port: int, etcd_port: int, more: Mapping[str, object]) -> list[str]:
    """kube-apiserver with the certificates in `folder/pki`; `more` adds or replaces flags."""
    pki = folder / "pki"
    flags: dict[str, object] = {
        "secure-port": port,
        "etcd-servers": f"http://127.0.0.1:{etcd_port}",
        "allow-privileged": True,
        "authorization-mode": "Node,RBAC",
        "client-ca-file": pki / "ca.crt",
        "enable-admission-plugins": "NodeRestriction",
        # Reach webhooks and aggregated APIs at their pods: the control plane has no kube-proxy.
        "enable-aggregator-routing": True,
        "kubelet-client-certificate": pki / "apiserver-kubelet-client.crt",
        "kubelet-client-key": pki / "apiserver-kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "proxy-client-cert-file": pki / "front-proxy-client.crt",
        "proxy-client-key-file": pki / "front-proxy-client.key",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "service-cluster-ip-range": SERVICE_RANGE,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "feature-gates": GANGS["kube-apiserver"],
        "runtime-config": "scheduling.k8s.io/v1alpha2=true",
        "profiling": False,
    }
    return command("kube-apiserver", {**flags, **more})


def controller_manager(
    folder: Path, kubeconfig: Path, controllers: Sequence[str], more: Mapping[str, object]
) -> list[str]:
    """kube-controller-manager with these controllers ("*": all that are on by default). The loss of a node is noticed
    after 5 s instead of 50."""
    pki = folder / "pki"
    flags: dict[str, object] = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "client-ca-file": pki / "ca.crt",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "root-ca-file": pki / "ca.crt",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "service-account-private-key-file": pki / "sa.key",
        "controllers": ",".join(controllers),
        "cluster-cidr": POD_RANGE,
        "flex-volume-plugin-dir": folder / "volume-plugins",  # it makes this folder, by default below /usr
        "allocate-node-cidrs": False,
        "leader-elect": False,
        "node-monitor-grace-period": "5s",
        "node-monitor-period": "1s",
        # At the default of 20 requests a second, the controllers alone take 5 s to start.
        "kube-api-qps": 200,
        "kube-api-burst": 400,
        "feature-gates": GANGS["kube-controller-manager"],
        "profiling": False,
    }
    return command("kube-controller-manager", {**flags, **more})


def scheduler(kubeconfig: Path) -> list[str]:
    flags = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "leader-elect": False,
        "feature-gates": GANGS["kube-scheduler"],
        "profiling": False,
    }
    return command("kube-scheduler", flags)
