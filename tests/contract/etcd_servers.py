"""Real etcd servers for the contract and fault tests: every installed version, with TLS, users and clusters, and ways
to break them.

A server ends with the thread that started it (see hack.cluster.processes.Child), so start it in the test's main thread.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from elasticjob_runtime.etcd import KeyRange
from elasticjob_runtime.etcd.protocol import encode

from hack.cluster.output import tail
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from hack.cluster.programs import programs_folder
from hack.support import eventually
from tests.contract.certificates import Pki

ROOT_PASSWORD = "root secret"
VERSIONS = ("3.4", "3.6")


@lru_cache
def etcd_binary(version: str) -> Path | None:
    """An etcd of this minor version: the one built for the test cluster, or one on PATH (Debian ships 3.4)."""
    try:
        candidates: list[str | Path | None] = [programs_folder() / "etcd"]
    except Exception:  # noqa: BLE001 - without Go, there is no built one either
        candidates = []
    for candidate in (*candidates, shutil.which("etcd"), "/usr/bin/etcd", "/usr/local/bin/etcd"):
        if candidate is None or not Path(candidate).exists():
            continue
        output = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=True).stdout
        if output.startswith(f"etcd Version: {version}."):
            return Path(candidate)
    return None


def require_etcd(version: str) -> Path:
    binary = etcd_binary(version)
    if binary is None:
        hint = "apt-get install etcd-server" if version == "3.4" else "python -m hack.cluster build"
        pytest.skip(f"needs etcd {version}, and none is built or on PATH ({hint})")
    return binary


class EtcdServer:
    """One etcd member. `start` may be called again after `kill`, with the data kept."""

    def __init__(
        self,
        binary: Path,
        directory: Path,
        *,
        flags: Sequence[str] = (),
        pki: Pki | None = None,
        client_port: int = 0,
        peer_port: int = 0,
        name: str = "default",
        cluster: str = "",
    ) -> None:
        self.binary = binary
        self.directory = directory
        self.pki = pki
        self.name = name
        self._flags = list(flags)
        self._cluster = cluster
        found = free_ports(2)
        self.port = client_port or found[0]
        self.peer_port = peer_port or found[1]
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.pki else 'http'}://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def launch(self) -> None:
        """Starts the server without waiting for it to be ready."""
        peer = f"http://127.0.0.1:{self.peer_port}"
        command = [
            str(self.binary),
            *("--name", self.name, "--data-dir", str(self.directory / f"{self.name}.etcd")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", self._cluster or f"{self.name}={peer}"),
            *(self.pki.server_flags() if self.pki else ()),
            *self._flags,
        ]
        self._child = Child(command, self.log)

    def wait_ready(self) -> None:
        assert self._child is not None
        self._child.wait_until(self.healthy)

    def start(self) -> EtcdServer:
        self.launch()
        self.wait_ready()
        return self

    def healthy(self) -> bool:
        try:
            self.call("/v3/maintenance/status", {})
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Sends SIGKILL: connections are reset, and etcd flushes nothing."""
        if self._child is not None:
            self._child.stop(grace=0)

    def wipe(self) -> None:
        """Deletes the data, as when a pod without a volume is rescheduled."""
        shutil.rmtree(self.directory / f"{self.name}.etcd")

    def freeze(self) -> None:
        """Sends SIGSTOP: the kernel still accepts connections and acknowledges data, but no request is answered."""
        assert self._child is not None
        self._child.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._child.pid}/task")
        eventually(
            lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads.glob("*/stat"))
        )

    def thaw(self) -> None:
        if self._child is not None and self._child.alive():
            self._child.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.thaw()
        self.kill()

    def call(self, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
        """Makes one call to the gateway. Raises OSError (including HTTPError)."""
        headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)  # noqa: S310 - always http(s)
        context = self.pki.context() if self.pki else None
        with urllib.request.urlopen(request, timeout=5, context=context) as response:  # noqa: S310
            answer: dict[str, Any] = json.load(response)
            return answer

    def compact(self, revision: int, token: str = "") -> None:
        self.call("/v3/kv/compaction", {"revision": str(revision), "physical": True}, token)

    def start_guarded(self) -> None:
        """Like `start`, once `enable_users` has turned authentication on."""
        self.launch()
        assert self._child is not None
        self._child.wait_until(lambda: bool(self._root_token()))

    def change_password(self, user: str, password: str) -> None:
        self.call("/v3/auth/user/changepw", {"name": user, "password": password}, self._root_token())

    def _root_token(self) -> str:
        try:
            return str(self.call("/v3/auth/authenticate", {"name": "root", "password": ROOT_PASSWORD})["token"])
        except OSError:
            return ""

    def tail(self) -> str:
        return tail(self.log)


def enable_users(server: EtcdServer, users: dict[str, tuple[str, str]]) -> None:
    """Turns authentication on. `users`: name to password and the prefix that the user may read and write."""
    add: list[tuple[str, dict[str, Any]]] = [
        ("/v3/auth/user/add", {"name": "root", "password": ROOT_PASSWORD}),
        ("/v3/auth/role/add", {"name": "root"}),
    ]
    add.append(("/v3/auth/user/grant", {"user": "root", "role": "root"}))
    for name, (password, prefix) in users.items():
        span = KeyRange.prefix(prefix)
        permission = {"permType": "READWRITE", "key": encode(span.key), "range_end": encode(span.end)}
        add += [
            ("/v3/auth/user/add", {"name": name, "password": password}),
            ("/v3/auth/role/add", {"name": name}),
            ("/v3/auth/role/grant", {"name": name, "perm": permission}),
            ("/v3/auth/user/grant", {"user": name, "role": name}),
        ]
    for path, body in (*add, ("/v3/auth/enable", {})):
        server.call(path, body)


def three_members(binary: Path, directory: Path) -> list[EtcdServer]:
    """Starts a healthy cluster of three members."""
    ports = free_ports(6)
    peers = {f"m{i}": ports[3 + i] for i in range(3)}
    cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in peers.items())
    members = [
        EtcdServer(binary, directory, client_port=ports[i], peer_port=ports[3 + i], name=f"m{i}", cluster=cluster)
        for i in range(3)
    ]
    for member in members:
        member.launch()
    for member in members:
        member.wait_ready()
    return members
