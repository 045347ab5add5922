"""What `elasticjob doctor` prints: a line for each check, with its remedy below. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elasticjob.decisions.commands import Flags, addressed
from elasticjob.decisions.doctor import Finding, Verdict
from elasticjob.views.table import paint
from elasticjob.views.text import plain_lines, wrapped

_STYLES = {Verdict.GOOD: "good", Verdict.WARNING: "warn", Verdict.BAD: "bad", Verdict.UNKNOWN: "dim"}


def report(
    found: Sequence[Finding], *, width: int | None = None, color: bool = False, flags: Flags = ()
) -> Iterator[str]:
    for each in found:
        mark = paint(each.verdict.value, _STYLES[each.verdict], color=color)
        yield from wrapped(plain_lines(each.what), f"{mark} ", "  ", width)
        if each.remedy:
            yield from wrapped([addressed(each.remedy, flags)], f"  {paint('→', 'good', color=color)} ", "    ", width)
