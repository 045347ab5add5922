"""The results as a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hack.chaos.faults import FAULTS
from hack.chaos.run import Result

HEAD = (
    "| fault | runs | kept all promises | pause (most) | steps redone | restarts | pods replaced | two groups at once "
    "| extra commits |",
    "|---|---|---|---|---|---|---|---|---|",
)


def table(results: Sequence[Result]) -> str:
    """One row for each fault, with and without the operator being killed: medians of the runs."""
    rows: dict[tuple[str, bool], list[Result]] = {}
    for result in results:
        rows.setdefault((result.fault, result.with_operator_killed), []).append(result)
    return "\n".join([*HEAD, *(_row(fault, killed, found) for (fault, killed), found in rows.items())])


def complaints(results: Sequence[Result]) -> list[str]:
    """All broken promises."""
    return [
        f"{_name(result.fault, result.with_operator_killed)}: {text}" for result in results for text in result.broken
    ]


def _row(fault: str, killed: bool, found: list[Result]) -> str:
    kept = sum(not result.broken for result in found)
    pauses = [result.pause for result in found]
    cells = [
        _name(fault, killed),
        str(len(found)),
        f"{kept} of {len(found)}",
        f"{statistics.median(pauses):.1f} s ({max(pauses):.1f} s)",
        *(_spread([getattr(result, name) for result in found]) for name in ("redone", "restarts", "deleted")),
        f"{max(result.together for result in found):.1f} s",
        _spread([result.extra_commits for result in found]),
    ]
    return f"| {' | '.join(cells)} |"


def _name(fault: str, killed: bool) -> str:
    what = next((item.what for item in FAULTS if item.name == fault), fault)
    return f"{what}{', and the operator is killed' if killed else ''}"


def _spread(values: list[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"
