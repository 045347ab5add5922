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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operator", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "scenarios",
        nargs="*",
        default=["big", "idle", "own"],
        choices=["big", "idle", "own", "scale", "progress", "queued", "fleet", "plans"],
        help="default: big idle own",
    )
    parser.add_argument("--big", type=int, default=1000, help="worker pods of the one job (default: 1000)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="repetitions of `big`, of which the medians are shown (default: 3)"
    )
    parser.add_argument("--jobs", type=int, default=1000, help="number of small jobs (default: 1000)")
    parser.add_argument("--workers", type=int, default=4, help="worker pods of a small job (default: 4)")
    parser.add_argument(
        "--scale-jobs",
        type=int,
        default=5000,
        help="number of jobs in `scale`, with --workers pods each (default: 5000)",
    )
    parser.add_argument(
        "--progress-jobs", type=int, default=500, help="number of jobs in `progress`, with 2 pods each (default: 500)"
    )
    parser.add_argument(
        "--queued-jobs", type=int, default=200, help="number of jobs in `queued`, with 3 pods each (default: 200)"
    )
    parser.add_argument(
        "--fleet-jobs",
        type=lambda text: [int(number) for number in text.split(",")],
        default=[40, 80],
        help="numbers of jobs in `fleet`, the smallest first, with --workers pods each (default: 40,80)",
    )
    parser.add_argument(
        "--plan-pods", type=int, default=5000, help="worker pods of the one job in `plans` (default: 5000)"
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
        (folder / scenario).mkdir()
        if scenario == "fleet":
            found: list[dict[str, float]] = []
            for jobs in arguments.fleet_jobs:
                found.append(_run_fleet(folder / scenario / str(jobs), jobs, arguments))
                fleet.show(console, found)
            continue
        figures = asyncio.run(_run(scenario, folder / scenario, arguments))
        good = _show(console, scenario, figures) and good
    console.print(f"load of this machine: {os.getloadavg()[0]:.1f}; logs: {folder}")
    return 0 if good else 1


def _run_fleet(folder: Path, jobs: int, arguments: argparse.Namespace) -> dict[str, float]:
    folder.mkdir()
    return asyncio.run(fleet.run(folder, jobs, arguments.workers, arguments.idle_seconds))


async def _run(scenario: str, folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    if scenario == "scale":
        with scenarios.etcds(folder, 1) as endpoint:
            return await scale.run(
                folder,
                endpoint(0),
                arguments.scale_jobs,
                arguments.workers,
                lambda config, log: Operator(config, folder / log, None, **scale.SETTINGS),
            )
    if scenario == "progress":
        with scenarios.etcds(folder, 1) as endpoint:
            return await progress.run(
                folder,
                endpoint(0),
                arguments.progress_jobs,
                2,
                arguments.idle_seconds,
                lambda config, log: Operator(
                    config, folder / log, None, ELASTICJOB_LEASE_NAMESPACE="default", ELASTICJOB_LEASE_IDENTITY=log
                ),
            )
    if scenario == "plans":
        return plans.run(arguments.plan_pods)
    if scenario == "queued":
        return await queued.run(folder, arguments.queued_jobs, 3)
    own = arguments.jobs if scenario == "own" else 1
    with (
        FakeCluster(folder) as cluster,
        scenarios.etcds(folder, own) as endpoint,
        Operator(
            cluster.kubeconfig, folder / "operator.log", folder / "profile.json" if arguments.profile else None
        ) as operator,
    ):
        async with Client(cluster.kubeconfig) as client:
            if scenario == "big":
                return await scenarios.big_jobs(client, operator, arguments.big, endpoint(0), arguments.rounds)
            figures = await scenarios.many_jobs(
                client,
                operator,
                arguments.jobs,
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
