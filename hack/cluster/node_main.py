"""Runs as the first process of a node: mounts its file systems, starts containerd, kubelet and kube-proxy, and exits.

It is started inside the node's cgroups and its network, mount, host name and cgroup namespaces (`nodes.py`). Its mounts
are visible only to the node, and disappear with the node's last process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hack.support import within

from . import node_config
from .cgroups import give_controllers_to_children
from .output import environment, run
from .settings import POD_RANGE, SHARED_DIRECTORY, NodeAddress, node_address

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class NodeSpec:
    """What a node needs to know, passed as JSON in its first argument."""

    name: str
    folder: str
    """The node's own files: run, var-lib and var-log become /run, /var/lib and /var/log."""
    logs: str
    programs: str
    kubeconfig: str
    proxy_kubeconfig: str
    certificate_authority: str
    cgroup_mounts: list[tuple[str, str | None]]
    """Name below /sys/fs/cgroup and mount options of each hierarchy; options None: cgroup v2, mounted at /sys/fs/cgroup
    itself."""
    visible: list[str]
    """Folders that stay visible even where they lie below /var/lib."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def address(self) -> NodeAddress:
        return node_address(self.name)


def main() -> None:
    spec = NodeSpec(**json.loads(sys.argv[1]))
    run(["hostname", spec.name])
    run(["mount", "--make-rprivate", "/"])
    _mount_cgroups(spec)
    _mount_folders(spec)
    _set_kernel_parameters()
    _write_configuration(spec)
    _start(spec, "containerd", ["--config", f"{spec.folder}/containerd.toml"])
    _wait_for_containerd(spec)
    _start(spec, "kubelet", _kubelet_arguments(spec), _AGAIN)
    _start(spec, "kube-proxy", _kube_proxy_arguments(spec))


def _mount_cgroups(spec: NodeSpec) -> None:
    """Mounts the hierarchies again: in this cgroup namespace, the node's own cgroup is their root."""
    if any(options is None for _, options in spec.cgroup_mounts):
        run(["mount", "-t", "cgroup2", "cgroup2", CGROUPS])
        _make_room_for_pods()
        return
    run(["mount", "-t", "tmpfs", "tmpfs", CGROUPS])
    for name, options in spec.cgroup_mounts:
        (CGROUPS / name).mkdir()
        run(["mount", "-t", "cgroup", "-o", str(options), "cgroup", CGROUPS / name])
        for controller in name.split(","):  # "cpu,cpuacct" is also found as cpu and as cpuacct
            if controller != name:
                (CGROUPS / controller).symlink_to(name)


def _make_room_for_pods() -> None:
    """cgroup v2: controllers reach the children of a cgroup only when no process is in it, so ours move into a leaf."""
    leaf = CGROUPS / "system"
    leaf.mkdir(exist_ok=True)
    for process in (CGROUPS / "cgroup.procs").read_text().split():
        (leaf / "cgroup.procs").write_text(process)
    give_controllers_to_children(CGROUPS)


def _mount_folders(spec: NodeSpec) -> None:
    own = Path(spec.folder)
    for name in ("run", "var-lib", "var-log"):
        (own / name).mkdir(parents=True, exist_ok=True)
    for folder in (str(SHARED_DIRECTORY), *spec.visible):
        if folder.startswith("/var/lib/"):
            inside = own / "var-lib" / Path(folder).relative_to("/var/lib")
            inside.mkdir(parents=True, exist_ok=True)
            run(["mount", "--bind", folder, inside])
    for name, target in (("run", "/run"), ("var-lib", "/var/lib"), ("var-log", "/var/log")):
        run(["mount", "--rbind", own / name, target])
    Path(node_config.POD_LOGS).mkdir(exist_ok=True)


def _set_kernel_parameters() -> None:
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridge = Path(
        "/proc/sys/net/bridge/bridge-nf-call-iptables"
    )  # without it, Services fail between two pods of one node
    if not bridge.exists():
        run(["modprobe", "br_netfilter"])
    bridge.write_text("1")


def _write_configuration(spec: NodeSpec) -> None:
    own, cni = Path(spec.folder), Path(node_config.CNI_FOLDER)
    (own / "empty").write_text("")
    (own / "containerd.toml").write_text(node_config.containerd_config())
    (own / "kubelet.yaml").write_text(node_config.kubelet_config(spec.certificate_authority, str(own / "empty")))
    cni.mkdir(parents=True, exist_ok=True)
    (cni / "10-elasticjob.conflist").write_text(node_config.cni_config(spec.address))


def _kubelet_arguments(spec: NodeSpec) -> list[str]:
    names = ["--hostname-override", spec.name, "--node-ip", spec.address.address]
    files = ["--config", f"{spec.folder}/kubelet.yaml", "--kubeconfig", spec.kubeconfig]
    return [*files, "--root-dir", "/var/lib/kubelet", *names]


def _kube_proxy_arguments(spec: NodeSpec) -> list[str]:
    mode = ["--proxy-mode", "iptables", "--cluster-cidr", POD_RANGE, "--iptables-min-sync-period", "0s"]
    # The connection table is shared by the whole machine: leave it alone.
    settings = ("max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait")
    limits = [f"--conntrack-{setting}=0" for setting in settings]
    return ["--kubeconfig", spec.proxy_kubeconfig, "--hostname-override", spec.name, *mode, *limits]


_AGAIN = ("/bin/sh", "-c", 'for attempt in 1 2 3 4 5; do "$@" && exit; sleep 1; done', "again")
"""Runs a program again when it fails, as a service manager does: containerd may answer before the part that the kubelet
asks does."""


def _start(spec: NodeSpec, name: str, arguments: Sequence[str], runner: Sequence[str] = ()) -> None:
    path = f"{spec.programs}:{environment()['PATH']}"  # containerd finds its shim and runc there
    with Path(spec.logs, f"{name}.log").open("ab") as log:
        subprocess.Popen(
            [*runner, f"{spec.programs}/{name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(PATH=path),
            start_new_session=True,
        )


def _wait_for_containerd(spec: NodeSpec, timeout: float = 30.0) -> None:
    command = [f"{spec.programs}/ctr", "--address", node_config.SOCKET, "version"]
    if not within(timeout, lambda: not subprocess.run(command, capture_output=True, check=False).returncode, 0.05):
        raise SystemExit(f"containerd does not answer after {timeout:g} s, log: {spec.logs}/containerd.log")


if __name__ == "__main__":
    main()
