"""The launchers to compare, and how each is started. Pure.

Tuned torchrun has the shortest timeouts that its settings allow, in whole seconds. An agent counts as dead after three
missed heartbeats: with two, no join succeeded on a busy machine.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

_TUNED = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    name: str
    launcher: Sequence[str]
    """The arguments of `python` before the common flags."""
    on_etcd: bool
    what: str
    """Description in the report."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def command(self, endpoint: str, run_id: str, least: int, most: int, script: str) -> list[str]:
        """`endpoint`: of etcd, or where torchrun's first agent hosts its store."""
        return [
            *(
                sys.executable,
                *self.launcher,
                "--nnodes",
                f"{least}:{most}",
                "--nproc-per-node",
                "1",
                "--max-restarts",
                "1000",
            ),
            *(
                "--rdzv-backend",
                "etcd-v3" if self.on_etcd else "c10d",
                "--rdzv-endpoint",
                endpoint,
                "--rdzv-id",
                run_id,
            ),
            *("--local-addr", "127.0.0.1", script),
        ]


_TORCHRUN = ("-m", "torch.distributed.run")
_ELASTICRUN = ("-m", "elasticjob_runtime")
_FAST = ("--monitor-interval", "0.1", "--shutdown-timeout", "1")

SYSTEMS = {
    system.name: system
    for system in (
        System(
            name="torchrun",
            launcher=_TORCHRUN,
            on_etcd=False,
            what="as shipped: rendezvous c10d with default settings",
        ),
        System(
            name="torchrun-tuned",
            launcher=(*_TORCHRUN, *_FAST, "--rdzv-conf", _TUNED),
            on_etcd=False,
            what="c10d with the shortest timeouts it accepts, and `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`",
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        ),
        System(
            name="torchrun-etcd-v3",
            launcher=(*_TORCHRUN, *_FAST),
            on_etcd=True,
            what="torchrun with our rendezvous plug-in",
        ),
        System(
            name="elasticrun-spawn",
            launcher=(*_ELASTICRUN, "--start-method", "spawn"),
            on_etcd=True,
            what="elasticrun with `--start-method=spawn`: a new interpreter per worker process, as under torchrun",
        ),
        System(
            name="elasticrun",
            launcher=_ELASTICRUN,
            on_etcd=True,
            what="as shipped: worker processes forked from a process that has already imported torch",
        ),
    )
}
BASELINE = "torchrun-tuned"
"""The system that the others are compared with."""
