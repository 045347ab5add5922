"""`python -m benchmarks.pods`: see `--help`."""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.pods.job import Job, JobError
from benchmarks.pods.measure import Recovery, recovery
from hack.demo.run import set_up
from hack.drivers import KubeError, cluster_driver

LAUNCHERS = {"elasticrun": ["elasticrun"], "torchrun + plug-in": ["torchrun"]}
"""The commands of the containers; both read the operator's PET_* variables."""
WORLD = 4


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False)
    driver = cluster_driver()
    costs: dict[tuple[str, str], list[Recovery]] = {}
    try:
        set_up(driver)
        for number in range(1, arguments.runs + 1):
            for launcher in arguments.launchers:
                name = f"bench-{secrets.token_hex(3)}"
                with Job(driver, name, LAUNCHERS[launcher], WORLD) as job:
                    for change, cost in _measure(job).items():
                        costs.setdefault((change, launcher), []).append(cost)
                        console.print(f"run {number}  {launcher:18} {change:44} {_cell([cost])}", soft_wrap=True)
    except (JobError, KubeError) as error:
        console.print(f"[bold red]{error}[/]")
        return 1
    finally:
        if not arguments.keep:
            driver.down()
    console.print(_table(costs, arguments.launchers))
    console.print(
        f"medians of {arguments.runs} runs (minimum-maximum), steps lost; load of this machine: "
        f"{os.getloadavg()[0]:.1f}"
    )
    return 0


def _measure(job: Job) -> dict[str, Recovery]:
    """Measures one job: its start, the loss of a pod, the recovery to full size, and its shrinking to two."""
    applied = job.apply()
    found = {"apply -> first step": recovery(job.wait_for_training(WORLD, 0.0), applied, WORLD)}
    for rank in (WORLD - 1, 0):
        deleted = job.delete_pod(rank, WORLD)
        workers = job.wait_for_training(WORLD, deleted)
        found[f"pod of rank {rank} deleted -> step with the rest"] = recovery(workers, deleted, WORLD - 1)
        found[f"pod of rank {rank} deleted -> full size"] = recovery(workers, deleted, WORLD)
    scaled = job.scale(2)
    found["shrink 4 -> 2"] = recovery(job.wait_for_training(2, scaled), scaled, 2)
    return found


def _cell(costs: list[Recovery]) -> str:
    times = [cost.first_step for cost in costs if cost.first_step is not None]
    if len(times) * 2 < len(costs) or not times:
        return "never"
    lost = statistics.median(cost.steps_lost or 0 for cost in costs)
    spread = f" ({min(times):.2f}-{max(times):.2f})" if len(times) > 1 else ""
    return f"{statistics.median(times):.2f} s{spread}, {lost:g} lost"


def _table(costs: dict[tuple[str, str], list[Recovery]], launchers: list[str]) -> Table:
    table = Table("in real pods", *launchers)
    for change in dict.fromkeys(change for change, _ in costs):
        table.add_row(change, *(_cell(costs.get((change, launcher), [])) for launcher in launchers))
    return table


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pods", description="What a change costs in real pods.")
    parser.add_argument("--runs", type=int, default=5, help="jobs per launcher (default: 5)")
    parser.add_argument(
        "--launchers",
        type=lambda text: text.split(","),
        default=list(LAUNCHERS),
        help=f"separated by commas, of {', '.join(LAUNCHERS)} (default: all)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the cluster")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
