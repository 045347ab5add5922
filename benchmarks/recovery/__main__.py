"""`python -m benchmarks.recovery`: see `--help`."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

import benchmarks.recovery
from benchmarks.recovery import machine, picture, report, scenarios
from benchmarks.recovery.report import GOAL_SYSTEM, Measured, Row, Sample
from benchmarks.recovery.systems import SYSTEMS, torchft_packages
from hack.chaos.members import JobError
from hack.cluster.output import ClusterError

ROOT = Path(__file__).resolve().parents[2]
BENCH = Path("docs/bench")
PARTS = {"changes": Row.KILL, "overhead": Row.OVERHEAD, "state": Row.STATE, "silence": Row.SILENT}
"""What can be measured, and the row that a failure at the start counts for."""
SPARE = 2
"""Runs more, at most, of what has failed."""


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False, soft_wrap=True)
    if arguments.render:
        write(report.from_json(json.loads((ROOT / BENCH / "recovery.json").read_text())), ROOT)
        return 0
    if "torchft" in arguments.systems:
        torchft_packages()
    facts, started = machine.facts(), time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="elasticjob-bench-"))
    samples: list[Sample] = []
    failed: collections.Counter[tuple[str, str]] = collections.Counter()
    for number, (part, system) in enumerate(_runs(arguments, failed)):
        folder = logs / f"{number}-{part}-{system}"
        folder.mkdir()
        load, busy = os.getloadavg()[0], machine.busy()
        row = PARTS[part]
        try:
            for sample in _measure(part, system, folder, arguments.runs):
                row = sample.row
                samples.append(dataclasses.replace(sample, system=system, load=round(load, 2), busy=round(busy, 3)))
                value = report.figure(row, sample.value or 0.0)
                console.print(f"{system:17} {row.value:52} {value:15} (load {load:.1f}, CPU before {busy:.0%} busy)")
        except (JobError, ClusterError) as error:
            console.print(f"{system:17} {part} failed after {row.value!r}: {error}; logs: {folder}")
            samples.append(Sample(row=row, system=system, load=load, busy=busy))
            failed[part, system] += 1
    measured = Measured(facts, datetime.datetime.now(datetime.timezone.utc).date().isoformat(), samples)
    if not failed:
        shutil.rmtree(logs, ignore_errors=True)
    console.print(f"{report.page(measured)}\n{time.monotonic() - started:.0f} s", markup=False)
    if arguments.save:
        write(measured, ROOT)
    return 1 if failed else 0


def write(measured: Measured, root: Path) -> None:
    """Writes the figures, their page, and the parts of other pages that show them."""
    (root / BENCH / "recovery.json").write_text(json.dumps(report.to_json(measured), indent=1) + "\n")
    for name, text in rendered(measured, root).items():
        (root / name).write_text(text, encoding="utf-8")


def rendered(measured: Measured, root: Path) -> dict[str, str]:
    """Page -> its text with these figures."""
    parts = report.pages(measured)
    shown = {name: report.inserted((root / name).read_text(encoding="utf-8"), part) for name, part in parts.items()}
    return {str(BENCH / "recovery.md"): report.page(measured), picture.FILE: picture.kill(measured), **shown}


def _runs(arguments: argparse.Namespace, failed: collections.Counter[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(part, system), systems alternating. What has failed is repeated."""
    runs: collections.Counter[tuple[str, str]] = collections.Counter()
    for _ in range(arguments.runs + SPARE):
        for part in arguments.parts:
            for system in arguments.systems:
                if part != "changes" and system != GOAL_SYSTEM:
                    continue
                if part != "silence" and runs[part, system] < arguments.runs + failed[part, system]:
                    runs[part, system] += 1
                    yield part, system
    if "silence" in arguments.parts:
        yield from (("silence", name) for name in arguments.systems if not SYSTEMS[name].notices_silence)


def _measure(part: str, name: str, folder: Path, runs: int) -> Iterator[Sample]:
    system = SYSTEMS[name]
    if part == "changes":
        return scenarios.changes(system, folder)
    if part == "overhead":
        return scenarios.overhead(system, folder)
    return scenarios.state(system, folder) if part == "state" else scenarios.silences(system, folder, runs)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description=benchmarks.recovery.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=report.ENOUGH, help=f"of each (default: {report.ENOUGH})")
    parser.add_argument(
        "--systems", type=_list_of(list(SYSTEMS)), default=list(SYSTEMS), help=f"of {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--parts", type=_list_of(list(PARTS)), default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--save", action="store_true", help="write docs/bench/recovery.json and every page that shows its figures"
    )
    parser.add_argument(
        "--render", action="store_true", help="measure nothing: write these pages from the saved figures"
    )
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
