"""`python -m benchmarks.recovery`: see `--help`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

import benchmarks.recovery
from benchmarks.etcd import Etcd
from benchmarks.recovery import report, saved, scenarios
from benchmarks.recovery.job import Job, JobError
from benchmarks.recovery.report import Result
from benchmarks.recovery.systems import SYSTEMS, System
from hack.cluster.output import ClusterError

SAVED = Path(__file__).resolve().parents[2] / "docs" / "bench"
GOODPUT = "goodput"

SLOW = 30.0
"""s. Where a change takes longer, two runs suffice: the difference from other systems does not depend on the median."""

SETTLE = 0.5
"""s in which the processes of the previous run end."""

OVERHEAD = 2.5
"""s per run to measure the machine's load, and to start and stop etcd."""


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False)
    here = saved.facts()
    try:
        before = None if arguments.fresh else saved.load(arguments.folder)
        if arguments.save:
            saved.check(before, here)
    except saved.SavedError as error:
        console.print(str(error))
        return 2
    console.print(
        ", ".join(f"{name} {value}" for name, value in here.items()) + f"; load {os.getloadavg()[0]:.1f}",
        soft_wrap=True,
    )
    console.print(f"about {_expected(arguments) / 60:.0f} minutes on an otherwise idle machine")

    def keep(results: Sequence[Result]) -> None:
        if arguments.save:
            old = before.results if before else []
            saved.save(saved.Saved(here, _ordered(saved.merge(old, results, add=arguments.add))), arguments.folder)

    started = time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="elasticjob-bench-"))
    results = _measure(console, logs, arguments, keep)
    console.print(report.table(results))
    console.print(
        f"{len(results)} measurements in {time.monotonic() - started:.0f} s; load of this machine: "
        f"{os.getloadavg()[0]:.1f}"
    )
    if arguments.save:
        console.print(f"saved: recovery.md, .json and .svg in {arguments.folder}", soft_wrap=True)
    if any(result.error for result in results):
        console.print(f"logs: {logs}", soft_wrap=True)
        return 1
    shutil.rmtree(logs, ignore_errors=True)
    return 0


def _measure(
    console: Console, logs: Path, arguments: argparse.Namespace, keep: Callable[[Sequence[Result]], None]
) -> list[Result]:
    """Runs every scenario under every system in turn, so that other load on the machine affects all systems alike.

    Calls `keep` after each measurement.
    """
    results: list[Result] = []
    try:
        for number in range(1, max(arguments.runs, arguments.goodput_runs) + 1):
            for scenario, system in itertools.product(arguments.scenarios, arguments.systems):
                if number > (arguments.goodput_runs if scenario == GOODPUT else arguments.runs):
                    continue
                if is_clear([one for one in results if (one.system, one.scenario) == (system, scenario)]):
                    continue
                results += _one(console, logs, number, scenario, SYSTEMS[system], arguments)
                keep(results)
    except KeyboardInterrupt:
        console.print("interrupted; the measurements so far:")
    return results


def is_clear(results: Sequence[Result]) -> bool:
    """Whether two runs were slow: further ones would not change the result."""
    figures = [result.recovery.first_step for result in results if result.recovery and result.change != "start"]
    slow = [value for value in figures if value is None or value > SLOW]
    return len({result.run for result in results if not result.error}) >= 2 and len(slow) >= 2


def _one(
    console: Console, logs: Path, number: int, scenario: str, system: System, arguments: argparse.Namespace
) -> list[Result]:
    folder = logs / f"{scenario}-{system.name}-{number}"
    folder.mkdir()
    time.sleep(SETTLE)
    head = Result(
        system=system.name,
        change=scenario,
        run=number,
        scenario=scenario,
        at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        busy=round(saved.busy(), 3),
    )
    try:
        with Etcd(folder) as etcd, Job(system, folder, etcd.endpoint) as job:
            if scenario == GOODPUT:
                share = scenarios.crashes(job, arguments.goodput_seconds, arguments.goodput_every)
                results = [dataclasses.replace(head, goodput=share)]
            else:
                figures = scenarios.SCENARIOS[scenario](job)
                results = [dataclasses.replace(head, change=name, recovery=cost) for name, cost in figures.items()]
    except (JobError, ClusterError) as error:
        results = [dataclasses.replace(head, error=str(error))]
    for result in results:
        outcome = result.error or report.cell([result])
        console.print(
            f"run {number}  {system.name:17} {result.change:26} {outcome}  (CPU before: {head.busy:.0%} busy)",
            soft_wrap=True,
        )
    if not any(result.error for result in results) and not arguments.keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
    return results


def _ordered(results: Sequence[Result]) -> list[Result]:
    """In the order of a full run, whatever was measured first."""
    order = [*scenarios.SCENARIOS, GOODPUT]
    return sorted(results, key=lambda result: order.index(result.scenario))


def _expected(arguments: argparse.Namespace) -> float:
    """The expected duration of all measurements, s."""
    total = 0.0
    for scenario, system in itertools.product(arguments.scenarios, arguments.systems):
        if scenario == GOODPUT:
            total += arguments.goodput_runs * (arguments.goodput_seconds + scenarios.START_EXPECTED + OVERHEAD)
            continue
        one = scenarios.expected(scenario, system)
        total += (min(2, arguments.runs) if one > SLOW else arguments.runs) * (
            one + scenarios.START_EXPECTED + OVERHEAD
        )
    return total


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description=benchmarks.recovery.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=5,
        help="runs of each scenario under each system; 2 where one takes over 30 s (default: 5)",
    )
    parser.add_argument(
        "--scenarios", type=_list_of([*scenarios.SCENARIOS, GOODPUT]), help="separated by commas; default: all"
    )
    parser.add_argument(
        "--systems", type=_list_of(list(SYSTEMS)), default=list(SYSTEMS), help="separated by commas; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="one run, without untuned torchrun and without goodput")
    parser.add_argument("--goodput-runs", type=int, default=1, help="runs of the goodput scenario (default: 1)")
    parser.add_argument(
        "--goodput-seconds", type=float, default=300.0, help="length of the goodput scenario, s (default: 300)"
    )
    parser.add_argument(
        "--goodput-every",
        type=float,
        default=30.0,
        help="time between two crashes in the goodput scenario, s (default: 30)",
    )
    parser.add_argument(
        "--save",
        action="store_true",
        help="write table, plot and figures; saved results of other scenarios and systems stay",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="with --save: add to the saved runs of the same scenarios and systems instead of replacing them",
    )
    parser.add_argument("--fresh", action="store_true", help="with --save: discard the saved results")
    parser.add_argument("--folder", type=Path, default=SAVED, help="where --save writes (default: docs/bench)")
    parser.add_argument("--keep-logs", action="store_true", help="keep the logs even where nothing failed")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs = 1
        arguments.systems = [name for name in arguments.systems if name != "torchrun"]
    if arguments.scenarios is None:
        arguments.scenarios = [*scenarios.SCENARIOS, *(() if arguments.quick else (GOODPUT,))]
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
