"""The systems to compare, and how each is started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.etcd import Etcd
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "elasticjob"
TORCHFT = "0.2.0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    title: str
    """Of its column."""
    what: str
    """Description in the report."""
    launcher: Sequence[str]
    """The arguments of `python` before the common flags."""
    on_etcd: bool = True
    script: Path = HERE / "plain_script.py"
    restarts: bool = True
    """All worker processes restart at every change."""
    notices_silence: bool = True
    """Otherwise, all jobs in which a node is silent wait at the same time, at the end."""
    survives_coordinator: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def command(self, endpoint: str, run_id: str, least: int, most: int) -> list[str]:
        """`endpoint`: of etcd, or where torchrun's first agent hosts its store. Without the script."""
        return [
            *(sys.executable, *self.launcher, "--nnodes", f"{least}:{most}", "--nproc-per-node", "1"),
            *("--max-restarts", "1000", "--rdzv-backend", "etcd-v3" if self.on_etcd else "c10d"),
            *("--rdzv-endpoint", endpoint, "--rdzv-id", run_id, "--local-addr", "127.0.0.1"),
        ]


class Torchft(System):
    """Each replica of one process, under a launcher that starts it again. `endpoint` is the lighthouse's."""

    def command(self, endpoint: str, run_id: str, least: int, most: int) -> list[str]:  # noqa: ARG002
        return [
            *("env", f"TORCHFT_LIGHTHOUSE=http://{endpoint}", f"PYTHONPATH={torchft_packages()}"),
            *(sys.executable, str(HERE / "replica.py")),
        ]


_TORCHRUN = ("-m", "torch.distributed.run", "--monitor-interval", "0.1", "--shutdown-timeout", "1")
_TUNED = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""The shortest timeouts that torchrun's settings allow, in whole seconds. An agent counts as dead after three missed
heartbeats: with two, no join succeeded on a busy machine."""

SYSTEMS: dict[str, System] = {
    "torchrun": System(
        title="torchrun, tuned",
        launcher=(*_TORCHRUN, "--rdzv-conf", _TUNED),
        on_etcd=False,
        notices_silence=False,
        what="an ordinary script that saves a checkpoint every 25 steps; c10d with the shortest timeouts that it "
        f"accepts (`{_TUNED}`, `--monitor-interval=0.1`, `--shutdown-timeout=1`) and "
        "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`",
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    "torchrun-etcd-v3": System(
        title="torchrun, our rendezvous",
        launcher=_TORCHRUN,
        what="the same script; torchrun with `--rdzv-backend=etcd-v3`, and the same two flags",
    ),
    "torchft": Torchft(
        title="torchft, tuned",
        launcher=(),
        script=HERE / "torchft_script.py",
        restarts=False,
        what=f"torchft {TORCHFT}: heartbeat 50 ms, time-out 300 ms, join 200 ms, communication hook patched (as "
        "shipped, survivors end at a kill); a launcher that reacts immediately",
    ),
    "level-1": System(
        title="ElasticJob, processes restart",
        launcher=("-m", "elasticjob_runtime"),
        survives_coordinator=True,
        what="torchrun's script, unmodified; elasticrun as shipped",
    ),
    "level-2": System(
        title="ElasticJob, in place",
        launcher=("-m", "elasticjob_runtime"),
        script=HERE / "session_script.py",
        restarts=False,
        survives_coordinator=True,
        what="a script with an `ElasticSession`, no checkpoint on disk; elasticrun as shipped",
    ),
}

_LIGHTHOUSE = """
import signal
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:{port}", min_replicas=2, join_timeout_ms=200, quorum_tick_ms=20, heartbeat_timeout_ms=300
)
signal.pause()
"""


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
        [sys.executable, "-c", _LIGHTHOUSE.format(port=port)],
        folder / "lighthouse.log",
        {"PYTHONPATH": str(torchft_packages()), "NO_COLOR": "1"},
    )
    try:
        lighthouse.wait_until(lambda: listens(f"127.0.0.1:{port}"))
        yield Coordinator(f"127.0.0.1:{port}", lighthouse.pid)
    finally:
        lighthouse.stop(grace=0)


def listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False
