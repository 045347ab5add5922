"""`python -m benchmarks.in_place`: see `--help`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

import benchmarks.in_place
from benchmarks.in_place import report, scenarios
from benchmarks.in_place.report import Row, Sample
from benchmarks.in_place.systems import SYSTEMS
from benchmarks.recovery import saved
from benchmarks.recovery.job import JobError
from hack.cluster.output import ClusterError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench" / "in-place.md"
PARTS = {
    "changes": Row.KILL,
    "outages": Row.SILENT,
    "state": Row.STATE,
    "overhead": Row.OVERHEAD,
    "goodput": Row.GOODPUT,
}
"""What can be measured, and the row that a failure at the start counts for."""
SLOW = ("torchrun-tuned",)
"""Takes 10 s for each change, so that two jobs suffice: the difference does not depend on the median."""


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False)
    figures = arguments.save.with_suffix(".json") if arguments.save else None
    samples = report.from_json(json.loads(figures.read_text())) if figures and figures.exists() else []
    logs = Path(tempfile.mkdtemp(prefix="elasticjob-bench-"))
    new: list[Sample] = []
    for number, (part, system) in enumerate(_runs(arguments)):
        folder = logs / f"{number}-{part}-{system.replace(' ', '-')}"
        folder.mkdir()
        load = os.getloadavg()[0]
        row = PARTS[part]
        try:
            for sample in _measure(part, system, folder, arguments):
                row = sample.row
                new.append(dataclasses.replace(sample, system=system, load=load))
                console.print(f"{system:15} {row.value:52} {report.cell([sample])}  (load {load:.1f})", soft_wrap=True)
        except (JobError, ClusterError) as error:
            console.print(f"{system:15} {part} failed after {row.value!r}: {error}; logs: {folder}", soft_wrap=True)
            following = list(Row)[list(Row).index(row) + 1] if any(one.system == system for one in new) else row
            new.append(Sample(row=following, system=system, load=load))
        if figures and arguments.save:
            everything = report.merged(samples, new)
            figures.write_text(json.dumps(report.to_json(everything), indent=1) + "\n")
            day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            arguments.save.write_text(report.markdown(everything, saved.facts(), day), encoding="utf-8")
    header, rows = report.grid(new)
    table = Table(*header)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    if any(sample.value is None for sample in new) or arguments.keep_logs:
        console.print(f"logs: {logs}")
    else:
        shutil.rmtree(logs, ignore_errors=True)
    return 1 if any(sample.value is None for sample in new) else 0


def _runs(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(part, system), systems alternating."""
    for number in range(arguments.runs):
        for part in arguments.parts:
            for system in arguments.systems:
                only_level_2 = part in ("state", "overhead")
                if (only_level_2 and system != "level 2") or (part == "goodput" and number):
                    continue
                if system in SLOW and number >= arguments.slow_runs:
                    continue
                yield part, system


def _measure(part: str, name: str, folder: Path, arguments: argparse.Namespace) -> Iterator[Sample]:
    system = SYSTEMS[name]
    if part == "changes":
        return scenarios.changes(system, folder, 1 if name in SLOW else arguments.rounds)
    if part == "outages":
        return scenarios.outages(system, folder)
    if part == "state":
        return scenarios.state(system, folder, arguments.state)
    if part == "overhead":
        return scenarios.overhead(system, folder)
    return scenarios.crashes(system, folder, arguments.goodput_seconds, 30.0)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.in_place",
        description=benchmarks.in_place.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=5, help="jobs of each system (default: 5)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="how often each job goes through all changes (default: 1)"
    )
    parser.add_argument("--slow-runs", type=int, default=2, help="jobs under torchrun (default: 2)")
    parser.add_argument("--systems", type=_list_of(list(SYSTEMS)), default=list(SYSTEMS), help="default: all")
    parser.add_argument(
        "--parts", type=_list_of(list(PARTS)), default=list(PARTS), help=f"of {', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--goodput-seconds", type=float, default=120.0, help="default: 120")
    parser.add_argument("--state", type=int, default=1024, help="MiB of state to send to a joiner (default: 1024)")
    parser.add_argument(
        "--save", type=Path, nargs="?", const=PAGE, help="write the table here (default: docs/bench/in-place.md)"
    )
    parser.add_argument("--keep-logs", action="store_true")
    return parser.parse_args()


def _list_of(known: list[str]) -> report.Parser:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(known)):
            raise argparse.ArgumentTypeError(f"unknown: {unknown[0]}; known are {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
