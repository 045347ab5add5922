"""The parts that need no root: a control plane without nodes, and a plain etcd, on free ports of 127.0.0.1.

    with ControlPlane(controllers=["garbage-collector-controller"]) as control_plane:
        ...  # control_plane.kubeconfig, control_plane.kubectl("get", "namespaces")
    with Etcd() as etcd:
        ...  # etcd.endpoint

Several can run at once. Their processes end with the process that started them, even if that one is killed.
"""

from __future__ import annotations

import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import components
from .certificates import make_certificates
from .output import ClusterError, run, tail
from .ports import free_ports
from .processes import Child
from .programs import program

if TYPE_CHECKING:
    from typing import Self

START_ATTEMPTS = 3
"""A free port may be taken before our program listens on it."""


class _Loopback:
    """Common parts: folder, retries and clean-up."""

    def __init__(self, directory: Path | None) -> None:
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="elasticjob-"))
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def logs(self) -> Path:
        """The folder of the logs, one file per program."""
        return self.directory / "logs"

    def start(self) -> None:
        """Starts the programs and waits until they respond. Raises ClusterError with the end of the log of the one that
        does not."""
        attempts = START_ATTEMPTS
        while not self._started():
            attempts -= 1
            if not attempts:
                raise ClusterError(f"no free port in {START_ATTEMPTS} attempts, logs: {self.logs}\n{self.log_tails()}")

    def stop(self) -> None:
        """Ends the programs and removes the data. The logs stay if the caller chose the directory. Does nothing if
        already stopped."""
        self._end_programs()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def log_tails(self) -> str:
        """The end of every log, for the message of a failed test."""
        return "\n".join(f"--- {log}\n{tail(log)}" for log in sorted(self.logs.glob("*.log")))

    def _started(self) -> bool:
        """Returns False if another process has taken the free port meanwhile."""
        try:
            self._start()
        except BaseException as error:
            self._end_programs()
            if isinstance(error, ClusterError) and "address already in use" in str(error):
                return False
            raise
        return True

    def _start(self) -> None:
        raise NotImplementedError

    def _end_programs(self) -> None:
        for child in reversed(self.children):
            child.stop(grace=0)  # test data: nothing to save
        self.children.clear()
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def _start_child(self, command: Sequence[str | Path]) -> Child:
        name = Path(command[0]).name
        child = Child(command, self.logs / f"{name}.log")
        self.children.append(child)
        return child

    def _start_etcd(self, client_port: int, peer_port: int) -> Child:
        child = self._start_child(components.etcd(self.directory / "data", client_port, peer_port))
        child.wait_until(lambda: answers(f"http://127.0.0.1:{client_port}/health"))
        return child


class Etcd(_Loopback):
    """A plain etcd 3.6, one member, no TLS, no users. `endpoint` is `http://127.0.0.1:<port>`; the v3 JSON gateway is
    on it too."""

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.endpoint = ""

    def _start(self) -> None:
        client_port, peer_port = free_ports(2)
        self._start_etcd(client_port, peer_port)
        self.endpoint = f"http://127.0.0.1:{client_port}"


class ControlPlane(_Loopback):
    """etcd and kube-apiserver, with kube-controller-manager when `controllers` names any (the names that
    `kube-controller-manager --help` lists, such as garbage-collector-controller). No scheduler, no nodes: the test
    plays the kubelet.

    RBAC is on; `kubeconfig` is a cluster administrator's. Pods need no ServiceAccount object.
    """

    def __init__(self, directory: Path | None = None, controllers: Sequence[str] = ()) -> None:
        super().__init__(directory)
        self.controllers = tuple(controllers)
        self.server = ""
        self.etcd_endpoint = ""

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "super-admin.conf"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl as administrator and returns its output. Raises ClusterError with its errors if it fails."""
        return run([program("kubectl"), "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin)

    def _start(self) -> None:
        port, etcd_port, peer_port, manager_port = free_ports(4)
        for stale in self.directory.glob("*.conf"):
            stale.unlink()
        make_certificates(self.directory, f"127.0.0.1:{port}")
        self._start_etcd(etcd_port, peer_port)
        server = self._start_child(components.api_server(self.directory, port, etcd_port, self._server_flags()))
        context = ssl.create_default_context(cafile=str(self.directory / "pki" / "ca.crt"))
        server.wait_until(lambda: answers(f"https://127.0.0.1:{port}/readyz", context))
        if self.controllers:
            flags = {"bind-address": "127.0.0.1", "secure-port": manager_port}
            manager = self._start_child(
                components.controller_manager(self.directory, self.kubeconfig, self.controllers, flags)
            )
            manager_context = ssl._create_unverified_context()  # noqa: S323  its certificate is self-signed, and only /healthz is read
            manager.wait_until(lambda: answers(f"https://127.0.0.1:{manager_port}/healthz", manager_context))
        self.server = f"https://127.0.0.1:{port}"
        self.etcd_endpoint = f"http://127.0.0.1:{etcd_port}"

    def _server_flags(self) -> dict[str, Any]:
        return {
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",  # a loopback address cannot be an endpoint
            "disable-admission-plugins": "ServiceAccount",
        }


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """True when a GET of this address is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as response:  # noqa: S310  always http(s)
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
