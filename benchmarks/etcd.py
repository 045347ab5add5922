"""A real etcd on loopback for one measurement: the binary that is built for the test cluster."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from hack.cluster.programs import program


class Etcd:
    """Ends with this process. A context manager."""

    def __init__(self, folder: Path) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.url = client
        self.endpoint = client.removeprefix("http://")
        self._child = Child(
            [
                *(
                    program("etcd"),
                    "--data-dir",
                    folder / "etcd",
                    "--listen-client-urls",
                    client,
                    "--advertise-client-urls",
                    client,
                ),
                *(
                    "--listen-peer-urls",
                    peer,
                    "--initial-advertise-peer-urls",
                    peer,
                    "--initial-cluster",
                    f"default={peer}",
                ),
                *("--log-level", "warn"),
            ],
            folder / "etcd.log",
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def __enter__(self) -> Etcd:
        self._child.wait_until(self._healthy)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop(grace=0)

    def metrics(self) -> dict[str, float]:
        """Every metric of /metrics, summed over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:  # noqa: S310 - our own loopback address
            return parse_metrics(answer.read().decode())

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:  # noqa: S310 - our own loopback address
                return b"true" in answer.read()
        except OSError:
            return False


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text: name -> sum over all labels.

    >>> parse_metrics('# HELP a\\na{x="1"} 2\\na{x="2"} 3\\nb 1e3\\n')
    {'a': 5.0, 'b': 1000.0}
    """
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{[^\n]*\})? (\S+)$", text, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found
