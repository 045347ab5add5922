"""Saved results, which can be measured in several runs on one machine."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.recovery import report
from benchmarks.recovery.measure import Recovery
from benchmarks.recovery.report import Facts, Result
from hack.cluster.programs import program

NAME = "recovery"


class SavedError(Exception):
    """The saved results cannot be combined with new ones."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """The machine, and what was measured on it."""

    facts: Facts
    results: list[Result]


def facts() -> Facts:
    """Facts about this machine."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    etcd = subprocess.run([program("etcd"), "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return {
        "cores": os.cpu_count() or 1,
        "cpu": model or platform.machine(),
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "etcd": etcd,
    }


def load(folder: Path) -> Saved | None:
    """None where nothing is saved. Raises SavedError."""
    path = folder / f"{NAME}.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        return Saved(content["facts"], [_result(one) for one in content["results"]])
    except (ValueError, KeyError, TypeError) as error:
        raise SavedError(
            f"{path.name} is not a result of this benchmark ({error!r}): use --fresh to discard it"
        ) from error


def check(saved: Saved | None, here: Facts) -> None:
    """Raises SavedError where the results are from another machine: such figures cannot be compared."""
    if saved is None or saved.facts == here:
        return
    differ = [
        f"{name}: {saved.facts.get(name)} saved, {here[name]} here"
        for name in here
        if saved.facts.get(name) != here[name]
    ]
    raise SavedError(f"the saved results are from another machine ({'; '.join(differ)}): use --fresh to discard it")


def merge(before: Sequence[Result], new: Sequence[Result], *, add: bool) -> list[Result]:
    """New results replace saved ones of the same system and scenario; with `add`, they are added to them."""
    if not add:
        measured = {(result.system, result.scenario) for result in new}
        return [*(result for result in before if (result.system, result.scenario) not in measured), *new]
    runs: dict[tuple[str, str], int] = {}
    for result in before:
        runs[result.system, result.scenario] = max(runs.get((result.system, result.scenario), 0), result.run)
    later = [
        dataclasses.replace(result, run=result.run + runs.get((result.system, result.scenario), 0)) for result in new
    ]
    return [*before, *later]


def save(saved: Saved, folder: Path) -> list[Path]:
    """Writes figures, text and plot; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"facts": saved.facts, "results": [dataclasses.asdict(result) for result in saved.results]}
    written = {
        folder / f"{NAME}.json": json.dumps(content, indent=1) + "\n",
        folder / f"{NAME}.md": report.markdown(saved.results, saved.facts),
        folder / f"{NAME}.svg": report.plot(saved.results),
    }
    for path, text in written.items():
        temporary = path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(path)
    return list(written)


def busy(seconds: float = 1.0) -> float:
    """The share of this machine's CPU time that is in use, 0 to 1."""
    before = _times()
    time.sleep(seconds)
    used, total = (after - earlier for after, earlier in zip(_times(), before, strict=True))
    return used / total if total else 0.0


def _times() -> tuple[int, int]:
    times = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = times[3] + times[4]
    return sum(times) - idle, sum(times)


def _result(content: dict[str, Any]) -> Result:
    recovery = content.pop("recovery")
    return Result(**content, recovery=Recovery(**recovery) if recovery is not None else None)
