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
from benchmarks.recovery.report import GOAL_SYSTEM, REPLICAS, Measured, Row, Sample
from benchmarks.recovery.systems import ALL, SHARDED, SYSTEMS, Torchft, torchft_packages
from hack.chaos.members import JobError
from hack.cluster.output import ClusterError
from hack.images.recipe import ROOT

BENCH = Path("docs/bench")
PARTS = {
    "changes": Row.KILL,
    "overhead": Row.OVERHEAD,
    "state": Row.STATE,
    "silence": Row.SILENT,
    "replicas": Row.REPLICA_KILL,
    "replicas-overhead": Row.REPLICA_OVERHEAD,
}
"""What can be measured, and the row that a failure at the start counts for."""
SPARE = 2
"""Runs more, at most, of what has failed."""


def main() -> int:
    arguments = _parse()
    console = Console(highlight=False, soft_wrap=True)
    if arguments.render:
        for measured in saved(ROOT):
            write(measured, ROOT)
        return 0
    if any(isinstance(ALL[name], Torchft) for name in arguments.systems):
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
    _show(measured, console, save=arguments.save)
    console.print(f"{time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def _show(measured: Measured, console: Console, *, save: bool) -> None:
    for group in (measured.only(SYSTEMS), measured.only(SHARDED)):
        if group.samples:
            console.print(_page(group), markup=False)
            if save:
                write(group, ROOT)


def write(measured: Measured, root: Path) -> None:
    """Writes the figures, their page, and the parts of other pages that show them."""
    name = "replicas.json" if _of_replicas(measured) else "recovery.json"
    (root / BENCH / name).write_text(json.dumps(report.to_json(measured), indent=1) + "\n")
    for page, text in rendered(measured, root).items():
        (root / page).write_text(text, encoding="utf-8")


def saved(root: Path) -> list[Measured]:
    """What `write` has written."""
    files = [root / BENCH / name for name in ("recovery.json", "replicas.json")]
    return [report.from_json(json.loads(file.read_text())) for file in files if file.exists()]


def rendered(measured: Measured, root: Path) -> dict[str, str]:
    """Page -> its text with these figures."""
    if _of_replicas(measured):
        return {str(BENCH / "replicas.md"): _page(measured)}
    parts = report.pages(measured)
    shown = {name: report.inserted((root / name).read_text(encoding="utf-8"), part) for name, part in parts.items()}
    return {str(BENCH / "recovery.md"): _page(measured), picture.FILE: picture.kill(measured), **shown}


def _page(measured: Measured) -> str:
    return report.replicas_page(measured) if _of_replicas(measured) else report.page(measured)


def _of_replicas(measured: Measured) -> bool:
    return bool(measured.only(SHARDED).samples)


def _runs(arguments: argparse.Namespace, failed: collections.Counter[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(part, system), systems alternating. What has failed is repeated."""
    runs: collections.Counter[tuple[str, str]] = collections.Counter()
    for _ in range(arguments.runs + SPARE):
        for part in arguments.parts:
            for system in arguments.systems:
                if (system in SHARDED) != part.startswith("replicas"):
                    continue
                if part not in ("changes", "replicas") and system not in (GOAL_SYSTEM, REPLICAS):
                    continue
                if part != "silence" and runs[part, system] < arguments.runs + failed[part, system]:
                    runs[part, system] += 1
                    yield part, system
    if "silence" in arguments.parts:
        yield from (("silence", name) for name in arguments.systems if not ALL[name].notices_silence)


def _measure(part: str, name: str, folder: Path, runs: int) -> Iterator[Sample]:
    system = ALL[name]
    if part == "silence":
        return scenarios.silences(system, folder, runs)
    measure = {
        "changes": scenarios.changes,
        "overhead": scenarios.overhead,
        "state": scenarios.state,
        "replicas": scenarios.replicas,
        "replicas-overhead": scenarios.replicas_overhead,
    }[part]
    return measure(system, folder)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description=benchmarks.recovery.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=report.ENOUGH, help=f"of each (default: {report.ENOUGH})")
    parser.add_argument("--systems", type=_list_of(list(ALL)), default=list(ALL), help=f"of {', '.join(ALL)}")
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
