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
    kept = sum(not each.broken for each in found)
    pauses = [each.pause for each in found]
    cells = [
        _name(fault, killed),
        str(len(found)),
        f"{kept} of {len(found)}",
        f"{statistics.median(pauses):.1f} s ({max(pauses):.1f} s)",
        *(_spread([getattr(each, name) for each in found]) for name in ("redone", "restarts", "deleted")),
        f"{max(each.together for each in found):.1f} s",
        _spread([each.extra_commits for each in found]),
    ]
    return f"| {' | '.join(cells)} |"


def _name(fault: str, killed: bool) -> str:
    what = next((each.what for each in FAULTS if each.name == fault), fault)
    return f"{what}{', and the operator is killed' if killed else ''}"


def _spread(values: list[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"
