"""The operator as a process of its own, and a port that can be cut."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import SplitResult

import yaml

from hack.cluster.ports import free_ports
from hack.support import eventually


class Operator:
    """`python -m elasticjob_operator` for one namespace. Its log stays in `log`."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, **environment: str) -> None:
        self.log = log
        self.probe_port = free_port()
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ELASTICJOB_")},
            "KUBECONFIG": str(kubeconfig),
            "ELASTICJOB_WATCH_NAMESPACES": namespace,
            "ELASTICJOB_CA_NAMESPACE": namespace or "default",
            "ELASTICJOB_PROBE_PORT": str(self.probe_port),
            "ELASTICJOB_NODE_SETTLE_SECONDS": "1",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "elasticjob_operator"], env=self._environment, stdout=log, stderr=log
            )
        eventually(self._answers, 120, what=f"the operator is ready; its log: {self.log}")

    def kill(self) -> None:
        """Without a chance to finish anything."""
        assert self._process
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> int:
        """Returns its exit code."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def restart(self) -> None:
        self.start()

    def probe(self, path: str) -> int:
        """HTTP status; 0: no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}{path}", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0

    def metrics(self) -> str:
        """Empty: no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}/metrics", timeout=5) as response:
                return str(response.read().decode())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return ""

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None: it runs."""
        assert self._process
        return self._process.poll()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _answers(self) -> bool:
        assert self._process
        if self._process.poll() is not None:  # and will not be ready
            raise RuntimeError(f"the operator ended with {self._process.returncode}:\n{self.log_text()}")
        return self.probe("/readyz") == 200

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def free_port() -> int:
    return free_ports(1)[0]


class Gate:
    """A TCP port in front of an API server, that can be shut: connections are refused, those that stand are cut."""

    def __init__(self, server: SplitResult) -> None:
        self._target = (server.hostname, server.port)
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        if self._listener is not None:
            # close() alone does not wake accept().
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.cut()

    def cut(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed meanwhile

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._connections |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for item in (source, sink):
            try:
                item.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def changed_kubeconfig(kubeconfig: Path, path: Path, *, server: str = "", token: str = "") -> Path:
    """`kubeconfig` with another address of the server, or another user, written to `path`."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    if server:
        config["clusters"][0]["cluster"]["server"] = server
    if token:
        config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path
