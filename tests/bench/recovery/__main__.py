"""`python -m tests.bench.recovery`: see `--help`."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.bench.etcd import Etcd
from tests.bench.recovery import report, scenarios
from tests.bench.recovery.job import Job, JobError
from tests.bench.recovery.report import Result
from tests.bench.recovery.systems import SYSTEMS, System

SAVED = Path(__file__).resolve().parents[3] / "docs" / "bench"


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False)
    results: list[Result] = []
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="elasticjob-bench-"))
    try:
        # Round by round, and in each all systems side by side: what else the machine does hits them alike.
        for number in range(1, arguments.runs + 1):
            for scenario in arguments.scenarios:
                for system in arguments.systems:
                    results += _one(console, folder, number, scenario, SYSTEMS[system], arguments)
    except KeyboardInterrupt:
        console.print("interrupted: what was measured so far")
    console.print(report.table(results))
    console.print(f"{len(results)} measurements in {time.monotonic() - started:.0f} s; load of this machine now: {os.getloadavg()[0]:.1f}")
    if arguments.save:
        written = report.save(results, SAVED, datetime.date.today(), os.cpu_count() or 1)
        console.print(f"saved: {', '.join(path.name for path in written)} in {SAVED.name}")
    if any(result.error for result in results):
        console.print(f"logs: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _one(console: Console, base: Path, number: int, scenario: str, system: System, arguments: argparse.Namespace) -> list[Result]:
    folder = base / f"{scenario}-{system.name}-{number}"
    folder.mkdir()
    results: list[Result] = []
    try:
        with Etcd(folder) as etcd, Job(system, folder, etcd.endpoint) as job:
            if scenario == "goodput":
                share = scenarios.crashes(job, arguments.goodput_seconds, arguments.goodput_every)
                results = [Result(system=system.name, change="goodput", run=number, goodput=share)]
            else:
                figures = scenarios.SCENARIOS[scenario](job)
                results = [Result(system=system.name, change=name, run=number, recovery=cost) for name, cost in figures.items()]
    except JobError as error:
        results = [Result(system=system.name, change=scenario, run=number, error=str(error))]
    for result in results:
        console.print(f"run {number}  {system.name:17} {result.change:26} {report.cell([result]) or result.error}", soft_wrap=True)
    if not any(result.error for result in results):
        shutil.rmtree(folder, ignore_errors=True)
    return results


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recovery", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each scenario with each system; the table has their medians (5)")
    parser.add_argument("--scenarios", type=_list_of([*scenarios.SCENARIOS, "goodput"]), help="separated by commas; default: all")
    parser.add_argument("--systems", type=_list_of(list(SYSTEMS)), default=list(SYSTEMS), help="separated by commas; default: all")
    parser.add_argument("--quick", action="store_true", help="one run, without torchrun as shipped and without goodput")
    parser.add_argument("--goodput-seconds", type=float, default=300.0, help="length of the scenario goodput (300)")
    parser.add_argument("--goodput-every", type=float, default=30.0, help="s between two crashes in it (30)")
    parser.add_argument("--save", action="store_true", help="write table, plot and figures to docs/bench")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs = 1
        arguments.systems = [name for name in arguments.systems if name != "torchrun"]
    if arguments.scenarios is None:
        arguments.scenarios = [*scenarios.SCENARIOS, *(() if arguments.quick else ("goodput",))]
    return arguments


def _list_of(known: list[str]) -> report.Parser:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(known)):
            raise argparse.ArgumentTypeError(f"unknown: {unknown[0]}; known are {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
