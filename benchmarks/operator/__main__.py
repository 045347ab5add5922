"""The operator on a real API server and scheduler, with kwok for nodes and kubelets.

big   one job of many worker pods, against a bare client that sends the same creates, 64 in flight, in the same run
idle  many small jobs on one etcd, at rest; then a storm: a tenth of all pods fails at once
own   many small jobs at rest, each with an etcd (an address) of its own
scale thousands of jobs that exist before the operator: its start and its memory; half of all nodes flap;
      a storm of one tenant's failures while another tenant scales
progress
      jobs that train and report their progress
queued jobs in a queue of stock Kueue, and batch Jobs in the same queue (root: on the test cluster)
fleet jobs that start, train, lose nodes and their operator, at several sizes
plans the CPU of single plans of one job of thousands of worker pods; nothing else runs

The benchmark, API server, scheduler, kwok and operator share the machine: compare ratios, not seconds, across machines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.operator import fleet, plans, progress, queued, scale, scenarios
from benchmarks.operator.fake_cluster import Client, FakeCluster
from benchmarks.operator.process import Operator

TARGETS = {
    "created / bare": 1.4,
    "running / bare": 1.05,
    "status / bare running": 1.4,
    "API calls per pod beyond create": 2.0,
    "idle: % of a core": 5.0,
    "idle: MiB": 256.0,
    "storm: reconcile p99, s": 1.0,
    "end: peak memory, MiB": 512.0,
    "at rest: plan, ms": 20.0,
    "created: plan, ms": 20.0,
}
"""Figure -> its upper limit."""


SIZES = {
    "big": [1000],
    "idle": [1000],
    "own": [1000],
    "scale": [5000],
    "progress": [500],
    "queued": [200],
    "fleet": [40, 80],
    "plans": [5000],
}
"""Scenario -> its number of jobs, or of worker pods of its one job; `fleet` has several, the smallest first."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operator", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "scenarios", nargs="*", default=["big", "idle", "own"], choices=list(SIZES), help="default: big idle own"
    )
    defaults = "; ".join(f"{name} {','.join(map(str, sizes))}" for name, sizes in SIZES.items())
    parser.add_argument(
        "--size",
        type=lambda text: [int(number) for number in text.split(",")],
        help="number of jobs; in `big` and `plans` of worker pods of the one job; in `fleet` several numbers of jobs, "
        f"the\nsmallest first (default: {defaults})",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="repetitions of `big`, of which the medians are shown (default: 3)"
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="worker pods of a job in `idle`, `own`, `scale` and `fleet` (default: 4)"
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=60.0,
        help="how long to measure in `idle`, `progress` and `fleet`, s (default: 60)",
    )
    parser.add_argument(
        "--profile", action="store_true", help="in `idle`: show where the operator's CPU time goes during the storm"
    )
    arguments = parser.parse_args()
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="elasticjob-bench-operator-"))
    good = True
    for scenario in arguments.scenarios:
        found: list[dict[str, float]] = []
        for size in arguments.size or SIZES[scenario]:
            own = folder / f"{scenario}-{size}"
            own.mkdir()
            found.append(asyncio.run(_run(scenario, own, size, arguments)))
            if scenario == "fleet":
                fleet.show(console, found)
            else:
                good = _show(console, scenario, found[-1]) and good
    console.print(f"load of this machine: {os.getloadavg()[0]:.1f}; logs: {folder}")
    return 0 if good else 1


async def _run(scenario: str, folder: Path, size: int, arguments: argparse.Namespace) -> dict[str, float]:
    """`size`: of jobs, or of worker pods of the one job."""
    if scenario == "fleet":
        return await fleet.run(folder, size, arguments.workers, arguments.idle_seconds)
    if scenario in ("scale", "progress"):
        with scenarios.etcds(folder, 1) as endpoint:
            if scenario == "scale":
                return await scale.run(folder, endpoint(0), size, arguments.workers)
            return await progress.run(folder, endpoint(0), size, arguments.idle_seconds)
    if scenario == "plans":
        return plans.run(size)
    if scenario == "queued":
        return await queued.run(folder, size, 3)
    own = size if scenario == "own" else 1
    with (
        FakeCluster(folder) as cluster,
        scenarios.etcds(folder, own) as endpoint,
        Operator(
            cluster.kubeconfig, folder / "operator.log", folder / "profile.json" if arguments.profile else None
        ) as operator,
    ):
        async with Client(cluster.kubeconfig) as client:
            if scenario == "big":
                return await scenarios.big_jobs(client, operator, size, endpoint(0), arguments.rounds)
            figures = await scenarios.many_jobs(
                client,
                operator,
                size,
                arguments.workers,
                endpoint,
                arguments.idle_seconds,
                storm=scenario == "idle",
            )
            return figures | {
                f"storm: % of CPU in {part}": share for part, share in operator.profile().items() if share >= 0.5
            }


def _show(console: Console, scenario: str, figures: dict[str, float]) -> bool:
    table = Table(title=scenario, title_justify="left")
    for column in ("", "measured", "at most"):
        table.add_column(column, justify="left" if not column else "right")
    good = True
    for name, value in figures.items():
        limit = TARGETS.get(name)
        missed = limit is not None and value > limit
        good = good and not missed
        text = f"{value:.3g}" if value < 100 else f"{value:.0f}"
        table.add_row(name, f"[bold red]{text}[/]" if missed else text, "" if limit is None else f"{limit:g}")
    console.print(table)
    return good


if __name__ == "__main__":
    sys.exit(main())
