"""The table of what was measured. Pure."""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.in_place.systems import BASELINE, SYSTEMS

Parser = Callable[[str], list[str]]


class Row(str, enum.Enum):
    """In the order of the table."""

    KILL = "a worker process is killed: next step"
    REPLACEMENT = "its replacement joins: stall"
    RESET = "node reset: next step"
    SILENT = "a node goes silent: next step"
    JOIN = "a member joins: stall"
    LEAVE = "a member leaves: stall"
    SHRINK = "4 -> 2: stall"
    GROW = "2 -> 4: stall"
    ALL = "all worker processes are killed: next step"
    COORDINATOR = "the coordinator ends: longest pause in 15 s"
    STATE = "1 GiB of state to a joiner: stall / the bytes alone"
    OVERHEAD = "a step of 50 ms: with a session / without"
    GOODPUT = "goodput, a worker process killed every 30 s"


GOALS = {
    Row.KILL: 0.05,
    Row.REPLACEMENT: 0.05,
    Row.RESET: 0.06,
    Row.SILENT: 1.0,
    Row.JOIN: 0.05,
    Row.LEAVE: 0.05,
    Row.SHRINK: 0.05,
    Row.GROW: 0.05,
    Row.ALL: 0.5,
    Row.COORDINATOR: 0.05,
    Row.STATE: 1.3,
    Row.OVERHEAD: 1.01,
    Row.GOODPUT: 0.99,
}
RATIOS = (Row.STATE, Row.OVERHEAD)
OUTAGES = (Row.SILENT, Row.COORDINATOR)
NEVER = math.inf
"""The value where training did not continue."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One change, or one run. Without a value, it failed."""

    row: Row
    system: str = ""
    value: float | None = None
    steps_lost: int | None = None
    samples_lost: int | None = None
    detail: float | None = None
    """An absolute figure next to a ratio, s."""
    load: float = 0.0
    """Load of the machine before the run."""


def cell(samples: Sequence[Sample]) -> str:
    """Median, minimum and maximum, what was lost (medians), and failures."""
    good = [sample for sample in samples if sample.value is not None]
    failed = f"{len(samples) - len(good)} of {len(samples)} failed" if len(good) < len(samples) else ""
    if not good:
        return failed
    row = good[0].row
    values = [sample.value for sample in good if sample.value is not None]
    text = _figure(row, statistics.median(values))
    if len(set(values)) > 1:
        text += f" ({_figure(row, min(values), unit=False)}-{_figure(row, max(values), unit=False)})"
    details = [sample.detail for sample in good if sample.detail is not None]
    if details:
        text += f", {statistics.median(details):.3f} s"
    losses: list[tuple[str, list[int]]] = [
        ("steps", [sample.steps_lost for sample in good if sample.steps_lost is not None]),
        ("samples", [sample.samples_lost for sample in good if sample.samples_lost is not None]),
    ]
    for what, numbers in losses:
        if any(numbers):
            text += f"; lost {what}: {statistics.median(numbers):g}, at most {max(numbers)}"
    return f"{text}; {failed}" if failed else text


def _figure(row: Row, value: float, *, unit: bool = True) -> str:
    if value == NEVER:
        return "never"
    if row == Row.GOODPUT:
        return f"{value:.1%}"
    if row in RATIOS:
        return f"{value:.3f}" if row == Row.OVERHEAD else f"{value:.2f}"
    return f"{value:.2f} s" if unit and value >= 1 else f"{value * 1000:.0f} ms" if unit else f"{value:.3f}"


def times(samples: Sequence[Sample], baseline: Sequence[Sample]) -> str:
    """How many times as long the baseline takes; empty if there is nothing to compare."""
    ours = [sample.value for sample in samples if sample.value is not None]
    theirs = [sample.value for sample in baseline if sample.value is not None]
    if not ours or not theirs or samples[0].row in (*RATIOS, Row.GOODPUT):
        return ""
    ratio = statistics.median(theirs) / max(0.001, statistics.median(ours))
    return f"{ratio:.0f}x" if math.isfinite(ratio) else ""


def grid(samples: Sequence[Sample]) -> tuple[list[str], list[list[str]]]:
    """(header, rows)."""
    systems = [name for name in SYSTEMS if any(sample.system == name for sample in samples)]
    rows = []
    for row in Row:
        found = {name: [one for one in samples if (one.system, one.row) == (name, row)] for name in systems}
        if not any(found.values()):
            continue
        cells = []
        for name in systems:
            ratio = "" if name == BASELINE else times(found[name], found.get(BASELINE, []))
            cells.append(cell(found[name]) + (f"; {ratio}" if ratio else ""))
        rows.append([row.value, *cells, goal(row)])
    return ["", *systems, "goal"], rows


def goal(row: Row) -> str:
    sign = ">=" if row == Row.GOODPUT else "<="
    return f"{sign} {_figure(row, GOALS[row])}"


def markdown(samples: Sequence[Sample], facts: Mapping[str, str | int], day: str) -> str:
    header, rows = grid(samples)
    machine = ", ".join(f"{value} {name}" if name == "cores" else f"{name} {value}" for name, value in facts.items())
    loads = [sample.load for sample in samples]
    lines = [
        "# Continuing in place",
        "",
        f"Measured on {day}: {machine}. Load of the machine before each run: median {statistics.median(loads):.1f}, "
        f"at most {max(loads):.1f}; the job that ran just before is part of it.",
        "`make bench-in-place`: four agents of one worker process each on loopback, DDP over gloo, steps of 20 ms, "
        "systems alternating.",
        "",
        "Median (minimum-maximum), what was lost if anything was, and how many times as long torchrun-tuned takes.",
        "",
        "| " + " | ".join(header) + " |",
        "|---" * len(header) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "*Next step*: from the event to the first step that the processes commit without what was lost, including the "
        "rest of the 20 ms that each step waits.",
        "*Stall*: the time between the last step before a change and the first one after it, less the usual time "
        "between steps.",
        "*Silent*: the agent and its worker process are stopped (SIGSTOP), so that all connections stay open.",
        "*The coordinator*: etcd, torchft's lighthouse, or the agent that hosts torchrun's store; it is killed, and "
        "stays away. *Never*: no step within 60 s, or none in the last 5 s of the 15 s.",
        "*Lost steps*: were part of the training, and had to be taken again.",
        "*Lost samples*: a process began a step with them, and no committed step contains them.",
        f"Number of measurements: {_counts(samples)}.",
        "",
        "| system | what it is |",
        "|---|---|",
        *(f"| {name} | {SYSTEMS[name].what} |" for name in header[1:-1]),
        "",
    ]
    return "\n".join(lines)


def _counts(samples: Sequence[Sample]) -> str:
    changes = [row for row in Row if row not in (*RATIOS, *OUTAGES, Row.GOODPUT)]
    parts = []
    for name in SYSTEMS:
        for what, rows in (("change", changes), ("outage", OUTAGES)):
            if number := max(sum((one.system, one.row) == (name, row) for one in samples) for row in rows):
                parts.append(f"{name} {number} of each {what}")
    rest = [(row, sum(one.row == row for one in samples)) for row in (*RATIOS, Row.GOODPUT)]
    return ", ".join([*parts, *(f"{row.value.partition(':')[0]} {count}" for row, count in rest if count)])


def to_json(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    return [
        {
            **dataclasses.asdict(sample),
            "row": sample.row.name,
            "value": "never" if sample.value == NEVER else sample.value,
        }
        for sample in samples
    ]


def from_json(content: Sequence[Mapping[str, Any]]) -> list[Sample]:
    return [
        Sample(**{**one, "row": Row[one["row"]], "value": NEVER if one["value"] == "never" else one["value"]})
        for one in content
    ]


def merged(before: Sequence[Sample], new: Sequence[Sample]) -> list[Sample]:
    """New samples replace those of the same row and system."""
    measured = {(sample.system, sample.row) for sample in new}
    return [*(sample for sample in before if (sample.system, sample.row) not in measured), *new]
