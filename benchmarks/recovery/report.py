"""Shows results as a table on the terminal, a Markdown page and a plot. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape

from rich.table import Table

from benchmarks.recovery.measure import Recovery
from benchmarks.recovery.scenarios import NEVER
from benchmarks.recovery.systems import BASELINE, SYSTEMS

Parser = Callable[[str], list[str]]
Facts = Mapping[str, str | int]
"""About the machine: name -> value."""

SURVIVED = ("node joins", "2 -> 4")
"""Changes that training need not wait for: the figure is how long it pauses."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One change in one run."""

    system: str
    change: str
    run: int
    recovery: Recovery | None = None
    goodput: float | None = None
    error: str = ""
    scenario: str = ""
    at: str = ""
    """When it was measured: ISO 8601, UTC."""
    busy: float | None = None
    """Share of the CPU that other processes used just before."""


def figure(result: Result) -> float | None:
    """The figure to compare: s to the first step, or s of the stall where members join; for goodput, the share lost."""
    if result.goodput is not None:
        return 1 - result.goodput
    if result.recovery is None:
        return None
    return result.recovery.stall if result.change in SURVIVED else result.recovery.first_step


def median(results: Sequence[Result]) -> float | None:
    """None where training did not resume in at least half of the runs."""
    return _median([figure(result) for result in results if not result.error])


def _median(figures: Sequence[float | None]) -> float | None:
    middle = (
        statistics.median_high(value if value is not None else float("inf") for value in figures)
        if figures
        else float("inf")
    )
    return None if middle == float("inf") else middle


def cell(results: Sequence[Result]) -> str:
    """Median, minimum and maximum, steps lost, failures; empty where nothing was measured."""
    good = [result for result in results if not result.error]
    failed = f"; {len(results) - len(good)} of {len(results)} failed" if len(good) < len(results) else ""
    if not good:
        return "failed" if results else ""
    middle = median(good)
    if good[0].goodput is not None:
        lost = [1 - value for result in good if (value := figure(result)) is not None]
        return f"{1 - (middle or 0.0):.1%}{_spread(lost, '%')}{failed}"
    values = [value for result in good if (value := figure(result)) is not None]
    if middle is None:
        return f"never ({NEVER:.0f} s)" + (f" in {len(good) - len(values)} of {len(good)}" if values else "") + failed
    never = f"; never in {len(good) - len(values)} of {len(good)}" if len(values) < len(good) else ""
    return f"{middle:.2f} s{_spread(values)}{_lost(good)}{never}{failed}"


def _spread(values: Sequence[float], kind: str = "") -> str:
    if len(values) < 2:
        return ""
    return f" ({min(values):.1%}-{max(values):.1%})" if kind else f" ({min(values):.2f}-{max(values):.2f})"


def _lost(good: Sequence[Result]) -> str:
    """Steps repeated: the median, and the maximum where it is larger."""
    lost = [result.recovery.steps_lost for result in good if result.recovery and result.recovery.steps_lost is not None]
    if not lost or good[0].change == "start":
        return ""
    middle = statistics.median_high(lost)
    return f", {middle} lost" + (f" (most {max(lost)})" if max(lost) > middle else "")


def ratio(results: Sequence[Result], baseline: Sequence[Result]) -> str:
    """How many times as long the baseline takes; empty if there is nothing to compare."""
    ours, theirs = median(results), median(baseline)
    if ours is None or theirs is None or not ours or (results and results[0].goodput is not None):
        return ""
    return f"{theirs / ours:.1f}x"


def changes(results: Sequence[Result]) -> list[str]:
    """All changes, in the order of measurement. A run that failed before its change is listed by its scenario, unless
    another system got further."""
    reached = {result.scenario for result in results if not result.error}
    return list(
        dict.fromkeys(result.change for result in results if not result.error or result.scenario not in reached)
    )


def of(results: Sequence[Result], system: str, change: str) -> list[Result]:
    """The runs of one system in which this change was to happen."""
    scenarios = {result.scenario for result in results if result.change == change and result.scenario}
    return [
        one
        for one in results
        if one.system == system and (one.change == change or (one.error and one.scenario in scenarios))
    ]


def grid(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """(header, rows): a row per change, a column per system."""
    systems = [name for name in SYSTEMS if any(result.system == name for result in results)]
    rows = []
    for change in changes(results):
        found = {name: of(results, name, change) for name in systems}
        cells = []
        for name in systems:
            better = "" if name in (BASELINE, "torchrun") else ratio(found[name], found.get(BASELINE, []))
            cells.append(cell(found[name]) + (f"  {better}" if better else ""))
        rows.append([f"{change}: stall" if change in SURVIVED else change, *cells])
    return ["event to first step", *systems], rows


def shares(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """(header, rows): the time until the last script of the new round started, which is the launcher's share."""
    systems = [name for name in SYSTEMS if any(result.system == name for result in results)]
    rows = []
    for change in dict.fromkeys(result.change for result in results if result.recovery is not None):
        cells = []
        for name in systems:
            good = [
                one.recovery
                for one in results
                if (one.system, one.change) == (name, change) and one.recovery is not None
            ]
            middle = _median([_share(cost, stall=change in SURVIVED) for cost in good])
            cells.append("" if not good else "never" if middle is None else f"{middle:.2f} s")
        rows.append([f"{change}: of the stall" if change in SURVIVED else change, *cells])
    return ["event to the script's first line", *systems], rows


def _share(cost: Recovery, *, stall: bool) -> float | None:
    """The launcher's share. Of a stall, it excludes the time in which joining members start while the others train."""
    if cost.restarted is None or cost.first_step is None or cost.stall is None or not stall:
        return cost.restarted
    return max(0.0, cost.restarted - (cost.first_step - cost.stall))


def runs(results: Sequence[Result]) -> str:
    """How many runs there were, as text."""
    counts: dict[tuple[str, str], set[int]] = {}
    for result in results:
        counts.setdefault((result.system, result.scenario), set()).add(result.run)
    numbers = [len(found) for (_, scenario), found in counts.items() if scenario != "goodput"]
    usual = statistics.mode(numbers) if numbers else 0
    fewer = [f"{system} {scenario} {len(found)}" for (system, scenario), found in counts.items() if len(found) != usual]
    return f"{usual} runs of each" + (f" (but {', '.join(fewer)})" if fewer else "")


def table(results: Sequence[Result]) -> Table:
    header, rows = grid(results)
    shown = Table(
        *header,
        title=f"medians (minimum-maximum), steps lost, and how many times as long {BASELINE} takes",
        title_justify="left",
    )
    for row in rows:
        shown.add_row(*row)
    return shown


def markdown(results: Sequence[Result], facts: Facts) -> str:
    days = sorted({result.at[:10] for result in results if result.at})
    others = [result.busy for result in results if result.busy is not None]
    machine = ", ".join(
        f"{value} {name}" if name == "cores" else f"{name} {value}" for name, value in facts.items() if value
    )
    quiet = (
        f"Just before each run, other processes used {statistics.median(others):.0%} of the CPU "
        f"(at most {max(others):.0%})."
        if others
        else ""
    )
    lines = [
        "# Recovery",
        "",
        f"Measured on {' and '.join(days) or 'an unknown day'}: {machine}. {quiet}",
        "Four agents of one worker process each on loopback, DDP over gloo, steps of at least 50 ms, a checkpoint per "
        "step.",
        f"Same script, same machine, systems alternating: `python -m benchmarks.recovery`. {runs(results)}.",
        "",
        "From the event to the first step of the new round: median (minimum-maximum), steps repeated, and how many "
        f"times as long {BASELINE} takes.",
        f"*Never*: not within {NEVER:.0f} s.",
        "*Stall*: the longest time without a step, where training need not wait for joining members.",
        "",
        *_markdown_table(*grid(results)),
        "",
        "![plot](recovery.svg)",
        "",
        "The launcher's and its rendezvous' share, until the last worker process's script started.",
        "The rest is `import torch`, DDP and the first step; a forked worker process has done most of that already.",
        "",
        *_markdown_table(*shares(results)),
        "",
        "| system | what it is |",
        "|---|---|",
        *(f"| {name} | {SYSTEMS[name].what} |" for name in SYSTEMS if any(result.system == name for result in results)),
        "",
    ]
    return "\n".join(lines)


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in rows)]


COLOURS = ("#9aa0a6", "#5f6368", "#f9ab00", "#8ab4f8", "#1a73e8")
_BAR, _LEFT, _WIDTH = 14, 190, 560


def plot(results: Sequence[Result]) -> str:
    """An SVG: bars of the medians, seconds, cut off at 12 s."""
    most = 12.0
    systems = [name for name in SYSTEMS if any(result.system == name for result in results)]
    shown = [change for change in changes(results) if change != "goodput"]
    parts: list[str] = []
    y = 30 + 16 * len(systems)
    for number, name in enumerate(systems):
        parts.append(f'<rect x="{_LEFT}" y="{10 + 16 * number}" width="11" height="11" fill="{_colour(name)}"/>')
        parts.append(f'<text x="{_LEFT + 18}" y="{20 + 16 * number}">{escape(name)}</text>')
    for change in shown:
        label = f"{change}: stall" if change in SURVIVED else change
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + _BAR * len(systems) / 2 + 4:.0f}" text-anchor="end">{escape(label)}</text>'
        )
        for name in systems:
            text, length, opacity = _bar(of(results, name, change), most)
            width = _WIDTH * length
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 3}" fill="{_colour(name)}" '
                f'fill-opacity="{opacity}"/>'
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


def _bar(results: Sequence[Result], most: float) -> tuple[str, float, float]:
    """(text, length as a share, opacity)."""
    if all(result.error for result in results):
        return ("failed" if results else ""), 0.0, 1.0
    value = median(results)
    return ("never", 1.0, 0.35) if value is None else (f"{value:.2f} s", min(value, most) / most, 1.0)


def _colour(system: str) -> str:
    return COLOURS[list(SYSTEMS).index(system)]
