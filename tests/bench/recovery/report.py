"""From results to what a person reads: a table on the terminal, Markdown, JSON and a plot. Pure, but for `save`."""

from __future__ import annotations

import dataclasses
import datetime
import json
import statistics
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from rich.table import Table

from tests.bench.recovery.measure import Recovery
from tests.bench.recovery.scenarios import NEVER
from tests.bench.recovery.systems import BASELINE, SYSTEMS

Parser = Callable[[str], list[str]]

SURVIVED = ("node joins", "2 -> 4")
"""Changes that the running job need not wait for: what counts is how long it stood still."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One change of one run."""

    system: str
    change: str
    run: int
    recovery: Recovery | None = None
    goodput: float | None = None
    error: str = ""


def figure(result: Result) -> float | None:
    """What is compared. Seconds: to the first step, or the stall where newcomers join; for goodput the share that was lost."""
    if result.goodput is not None:
        return 1 - result.goodput
    if result.recovery is None:
        return None
    return result.recovery.stall if result.change in SURVIVED else result.recovery.first_step


def median(results: Sequence[Result]) -> float | None:
    """None: in at least half of the runs it never came."""
    figures = [figure(result) for result in results if not result.error]
    middle = statistics.median_high(value if value is not None else float("inf") for value in figures) if figures else float("inf")
    return None if middle == float("inf") else middle


def cell(results: Sequence[Result]) -> str:
    """Median, least and most, the stall, steps lost; empty: nothing was measured."""
    good = [result for result in results if not result.error]
    if not good:
        return "failed" if results else ""
    middle = median(good)
    if good[0].goodput is not None:
        return f"{1 - (middle or 0.0):.1%}"
    if middle is None:
        return f"never ({NEVER:.0f} s)"
    values = [value for result in good if (value := figure(result)) is not None]
    text = f"{middle:.2f} s" + (f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else "")
    lost = [result.recovery.steps_lost for result in good if result.recovery and result.recovery.steps_lost is not None]
    return f"{text}, {statistics.median_high(lost)} lost" if lost and good[0].change != "start" else text


def ratio(results: Sequence[Result], baseline: Sequence[Result]) -> str:
    """How many times as long the baseline takes; empty where there is nothing to compare."""
    ours, theirs = median(results), median(baseline)
    if ours is None or theirs is None or not ours or (results and results[0].goodput is not None):
        return ""
    return f"{theirs / ours:.1f}x"


def grid(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """(header, rows): a row per change, a column per system."""
    systems = [name for name in SYSTEMS if any(result.system == name for result in results)]
    rows = []
    for change in dict.fromkeys(result.change for result in results):
        of = {name: [result for result in results if (result.system, result.change) == (name, change)] for name in systems}
        cells = []
        for name in systems:
            better = "" if name in (BASELINE, "torchrun") else ratio(of[name], of.get(BASELINE, []))
            cells.append(cell(of[name]) + (f"  {better}" if better else ""))
        rows.append([f"{change}: stall" if change in SURVIVED else change, *cells])
    return ["event to first step", *systems], rows


def table(results: Sequence[Result]) -> Table:
    header, rows = grid(results)
    shown = Table(*header, title=f"medians (least-most), steps lost, and how many times as long {BASELINE} takes", title_justify="left")
    for row in rows:
        shown.add_row(*row)
    return shown


def markdown(results: Sequence[Result], when: datetime.date, cores: int) -> str:
    header, rows = grid(results)
    runs = max((result.run for result in results), default=0)
    lines = [
        "# Recovery",
        "",
        f"Measured on {when.isoformat()}, {cores} cores, 4 agents of one worker each on loopback, DDP over gloo, a checkpoint per step;",
        f"medians of {runs} runs (least-most), steps lost, and how many times as long {BASELINE} takes.",
        "Same script, same machine, same run: `python -m tests.bench.recovery --save`.",
        "",
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "![plot](recovery.svg)",
        "",
    ]
    return "\n".join(lines)


COLOURS = ("#9aa0a6", "#5f6368", "#f9ab00", "#8ab4f8", "#1a73e8")
_BAR, _LEFT, _WIDTH = 14, 190, 560


def plot(results: Sequence[Result]) -> str:
    """An SVG: bars of the medians, seconds, cut off at 12 s."""
    most = 12.0
    systems = [name for name in SYSTEMS if any(result.system == name for result in results)]
    changes = list(dict.fromkeys(result.change for result in results if result.goodput is None))
    parts: list[str] = []
    y = 30 + 16 * len(systems)
    for number, name in enumerate(systems):
        parts.append(f'<rect x="{_LEFT}" y="{10 + 16 * number}" width="11" height="11" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{_LEFT + 18}" y="{20 + 16 * number}">{escape(name)}</text>')
    for change in changes:
        label = f"{change}: stall" if change in SURVIVED else change
        parts.append(f'<text x="{_LEFT - 8}" y="{y + _BAR * len(systems) / 2 + 4:.0f}" text-anchor="end">{escape(label)}</text>')
        for number, name in enumerate(systems):
            value = median([result for result in results if (result.system, result.change) == (name, change)])
            width = _WIDTH * min(value, most) / most if value is not None else _WIDTH
            text = f"{value:.2f} s" if value is not None else "never"
            opacity = "1" if value is not None else "0.35"
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 3}" fill="{COLOURS[number]}" fill-opacity="{opacity}"/>'
            )
            parts.append(f'<text x="{_LEFT + width + 5:.1f}" y="{y + 10}">{text}</text>')
            y += _BAR
        y += 12
    size = f'width="{_LEFT + _WIDTH + 70}" height="{y}"'
    style = 'font-family="sans-serif" font-size="11"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def save(results: Sequence[Result], folder: Path, when: datetime.date, cores: int) -> list[Path]:
    """Writes all three; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"date": when.isoformat(), "cores": cores, "results": [dataclasses.asdict(result) for result in results]}
    written = {
        folder / "recovery.md": markdown(results, when, cores),
        folder / "recovery.json": json.dumps(figures, indent=1) + "\n",
        folder / "recovery.svg": plot(results),
    }
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return list(written)
