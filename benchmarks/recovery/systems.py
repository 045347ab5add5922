"""The systems to compare, and how each is started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hack.chaos.members import Job
from hack.cluster.loopback import Etcd
from hack.cluster.ports import free_ports
from hack.cluster.processes import Child
from hack.images.recipe import ROOT

HERE = Path(__file__).parent
SCRIPT = ROOT / "hack" / "chaos" / "script.py"
SETTINGS = {
    "SAMPLES": "2000", "BATCH": "8", "EPOCHS": "100000", "EVERY": "25",
    "PACE": "0.02",  # in place of a real model's computation
}  # fmt: skip
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
    script: Path = SCRIPT
    restarts: bool = True
    """All worker processes restart at every change."""
    notices_silence: bool = True
    """Otherwise, all jobs in which a node is silent wait at the same time, at the end."""
    survives_coordinator: bool = False
    mode: str = "checkpoint"
    """Of the script."""
    processes: int = 1
    """Worker processes of each agent."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def command(self, endpoint: str, run_id: str, least: int, most: int) -> list[str]:
        """`endpoint`: of etcd, or where torchrun's first agent hosts its store. Without the script."""
        return [
            *(sys.executable, *self.launcher, "--nnodes", f"{least}:{most}"),
            *("--nproc-per-node", str(self.processes)),
            *("--max-restarts", "1000", "--rdzv-backend", "etcd-v3" if self.on_etcd else "c10d"),
            *("--rdzv-endpoint", endpoint, "--rdzv-id", run_id, "--local-addr", "127.0.0.1"),
        ]


class Torchft(System):
    """Each replica under a launcher that starts it again. `endpoint` is the lighthouse's."""

    def command(self, endpoint: str, run_id: str, least: int, most: int) -> list[str]:  # noqa: ARG002
        return [
            *("env", f"TORCHFT_LIGHTHOUSE=http://{endpoint}", f"PYTHONPATH={torchft_packages()}:{ROOT}"),
            *(sys.executable, *self.launcher),
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
        launcher=(str(HERE / "replica.py"),),
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
        mode="session",
        restarts=False,
        survives_coordinator=True,
        what="a script with an `ElasticSession`, no checkpoint on disk; elasticrun as shipped",
    ),
}

SHARDED_SCRIPT = HERE / "sharded_script.py"
SHARDED: dict[str, System] = {
    "torchrun-dcp": System(
        title="torchrun, tuned, and DCP",
        launcher=SYSTEMS["torchrun"].launcher,
        on_etcd=False,
        script=SHARDED_SCRIPT,
        processes=2,
        what="HSDP over the whole world; torch.distributed.checkpoint saves every 25 steps; flags as for DDP",
        environment=SYSTEMS["torchrun"].environment,
    ),
    "torchft-hsdp": Torchft(
        title="torchft HSDP, tuned",
        launcher=(*_TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1000"),
        script=SHARDED_SCRIPT,
        restarts=False,
        mode="torchft",
        processes=2,
        what=f"torchft {TORCHFT}: FSDP2 in each replica, and its all-reduce hook with a `ManagedProcessGroup`; a "
        "torchrun for each replica, with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` (otherwise, a replica that starts "
        "again may find the address of its old manager); times as for DDP",
        environment=SYSTEMS["torchrun"].environment,
    ),
    "replicas": System(
        title="ElasticJob, replicas in place",
        launcher=("-m", "elasticjob_runtime", "--replica-size", "1"),
        script=SHARDED_SCRIPT,
        mode="session",
        restarts=False,
        processes=2,
        what="FSDP2 in each replica, with an `ElasticSession`, no checkpoint on disk; elasticrun with "
        "`--replica-size=1 --nproc-per-node=2`",
    ),
}
"""What trains a sharded model."""
ALL = {**SYSTEMS, **SHARDED}

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
            yield Coordinator(etcd.endpoint.removeprefix("http://"), etcd.children[0].pid)
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


def job(system: System, folder: Path, endpoint: str, *, script: Path | None = None, **settings: str) -> Job:
    """`endpoint`: of the coordinator. `settings`: environment variables of the script."""
    if not system.on_etcd:
        endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    command = [*system.command(endpoint, secrets.token_hex(6), 2, 4), str(script or system.script)]
    paths = {"CHECKPOINTS": str(folder / "checkpoints")} if system.mode == "checkpoint" else {}
    environment = {**SETTINGS, **paths, "MODE": system.mode, "OUTPUT": str(folder / "{member}"), **settings}
    ready = None if system.on_etcd else lambda: listens(endpoint)
    return Job(command, folder, {**environment, **system.environment}, ready=ready)
