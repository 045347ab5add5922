"""The contestants, and how each is started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.etcd import Etcd
from benchmarks.recovery.systems import SYSTEMS as LAUNCHERS
from benchmarks.recovery.systems import System
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "elasticjob"
TORCHFT = "0.2.0"
CHECKPOINT_EVERY = {"BENCH_CHECKPOINT_EVERY": "25"}


LIGHTHOUSE = """
import signal
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:{port}", min_replicas=2, join_timeout_ms=200, quorum_tick_ms=20, heartbeat_timeout_ms=300
)
signal.pause()
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Torchft(System):
    """Each replica of one process, under a launcher that starts it again. `endpoint` is the lighthouse's."""

    def command(self, endpoint: str, run_id: str, least: int, most: int, script: str) -> list[str]:  # noqa: ARG002
        return [
            *("env", f"TORCHFT_LIGHTHOUSE=http://{endpoint}", f"PYTHONPATH={torchft_packages()}"),
            *(sys.executable, str(HERE / "replica.py"), str(HERE / "torchft_script.py")),
        ]


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        dataclasses.replace(
            LAUNCHERS["torchrun-tuned"],
            environment={**LAUNCHERS["torchrun-tuned"].environment, **CHECKPOINT_EVERY},
            what="torchrun with the shortest timeouts that it accepts (see [Recovery](recovery.md)), "
            "a checkpoint every 25 steps",
        ),
        Torchft(
            name="torchft",
            launcher=(),
            on_etcd=True,
            what=f"torchft {TORCHFT}: heartbeat 50 ms, time-out 300 ms, join 200 ms, "
            "communication hook patched (as shipped, survivors end at a kill); a launcher that reacts immediately",
        ),
        System(
            name="level 1",
            launcher=("-m", "elasticjob_runtime", "--in-place", "off"),
            on_etcd=True,
            what="elasticrun `--in-place=off`: all worker processes restart; checkpoints as above, memory snapshots",
            environment=CHECKPOINT_EVERY,
        ),
        System(
            name="level 2",
            launcher=("-m", "elasticjob_runtime"),
            on_etcd=True,
            what="elasticrun as shipped: in place, no checkpoint on disk",
        ),
    )
}
BASELINE = "torchrun-tuned"


def torchft_packages() -> Path:
    """A folder with torchft and what it needs except torch, so that it runs on the same torch as the others."""
    folder = CACHE / f"torchft-{TORCHFT}-python{platform.python_version()}"
    done = folder / ".done"
    if not done.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        subprocess.run([*pip, "--no-deps", "--upgrade", f"torchft=={TORCHFT}"], check=True)
        subprocess.run([*pip, "opentelemetry-exporter-otlp-proto-http>=1.39", "opentelemetry-sdk>=1.39"], check=True)
        done.touch()
    return folder


@dataclasses.dataclass(frozen=True)
class Coordinator:
    endpoint: str
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@contextlib.contextmanager
def coordinator(system: System, folder: Path) -> Iterator[Coordinator]:
    """etcd, or torchft's lighthouse."""
    if not isinstance(system, Torchft):
        with Etcd(folder) as etcd:
            yield Coordinator(etcd.endpoint, etcd.pid)
        return
    port = free_ports(1)[0]
    lighthouse = Child(
        [
            *(sys.executable, "-c", LIGHTHOUSE.format(port=port)),
        ],
        folder / "lighthouse.log",
        {"PYTHONPATH": str(torchft_packages()), "NO_COLOR": "1"},
    )
    try:
        lighthouse.wait_until(lambda: _listens(port))
        yield Coordinator(f"127.0.0.1:{port}", lighthouse.pid)
    finally:
        lighthouse.stop(grace=0)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
