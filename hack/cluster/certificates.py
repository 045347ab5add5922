"""Certificates and kubeconfigs, all created by `kubeadm init phase`."""

from __future__ import annotations

from pathlib import Path

import yaml

from .output import run
from .programs import program
from .settings import CONTROL_PLANE_ADDRESS, KUBERNETES_VERSION, POD_RANGE, SERVICE_RANGE


def make_certificates(folder: Path, endpoint: str, roles: tuple[str, ...] = ()) -> None:
    """Makes `folder/pki/*`, `folder/super-admin.conf` and `folder/<role>.conf` for each of `roles` (controller-manager,
    scheduler).

    `endpoint` is the API server's `address:port` in super-admin.conf; the other kubeconfigs name CONTROL_PLANE_ADDRESS.
    The server's certificate is good for both, for 127.0.0.1 and for localhost. What exists already is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "kubeadm.yaml"
    config.write_text(yaml.safe_dump_all(_kubeadm_documents(folder, endpoint)))
    run([program("kubeadm"), "init", "phase", "certs", "all", "--config", config])
    for role in ("super-admin", *roles):
        run([program("kubeadm"), "init", "phase", "kubeconfig", role, "--config", config, "--kubeconfig-dir", folder])


def make_kubelet_kubeconfig(folder: Path, node: str) -> Path:
    """Makes `folder/kubelets/<node>/kubelet.conf`, the identity `system:node:<node>`. Call `make_certificates`
    first."""
    kubelet_folder = folder / "kubelets" / node
    options: list[str | Path] = [
        "--config",
        folder / "kubeadm.yaml",
        "--node-name",
        node,
        "--kubeconfig-dir",
        kubelet_folder,
    ]
    run([program("kubeadm"), "init", "phase", "kubeconfig", "kubelet", *options])
    return kubelet_folder / "kubelet.conf"


def _kubeadm_documents(folder: Path, endpoint: str) -> list[dict[str, object]]:
    return [
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            # kubeadm rejects a loopback address here; the address only ends up in the certificate.
            "localAPIEndpoint": {"advertiseAddress": CONTROL_PLANE_ADDRESS, "bindPort": 6443},
            "nodeRegistration": {
                "name": "control-plane",
                "imagePullPolicy": "Never",
                "criSocket": "unix:///run/none.sock",
            },
        },
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": KUBERNETES_VERSION,
            "clusterName": "elasticjob-test",
            "certificatesDir": str(folder / "pki"),
            "controlPlaneEndpoint": endpoint,
            "encryptionAlgorithm": "ECDSA-P256",  # 0.2 s for all of them, against 1.5 s with RSA
            "apiServer": {"certSANs": ["127.0.0.1", "localhost", CONTROL_PLANE_ADDRESS]},
            "networking": {"podSubnet": POD_RANGE, "serviceSubnet": SERVICE_RANGE, "dnsDomain": "cluster.local"},
        },
    ]
