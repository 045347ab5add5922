"""`doctor`: is everything there that jobs need?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from elasticjob.cli.options import OptionalJobName, connect, given
from elasticjob.errors import Exit

if TYPE_CHECKING:
    from elasticjob.decisions.doctor import Finding

_STYLES = {"✓": "good", "!": "warn", "✗": "bad", "?": "dim"}


def doctor(name: OptionalJobName = None) -> None:
    """Check the cluster, the operator, your rights and, with a name, that job; with a remedy for each problem."""
    from elasticjob.cli.output import layout, say
    from elasticjob.decisions.doctor import Result
    from elasticjob.sdk.diagnosis import diagnose

    found = diagnose(connect().cluster, name)
    say(report(found, **layout()))
    if any(finding.result is Result.BAD for finding in found):
        raise typer.Exit(Exit.ERROR)


def report(found: Sequence[Finding], *, width: int | None = None, color: bool = False) -> Iterator[str]:
    """A line for each check, with its remedy below."""
    from elasticjob.decisions.commands import addressed
    from elasticjob.views.table import paint
    from elasticjob.views.text import plain_lines, wrapped

    for finding in found:
        mark = paint(finding.result.value, _STYLES[finding.result.value], color=color)
        yield from wrapped(plain_lines(finding.what), f"{mark} ", "  ", width)
        if finding.remedy:
            yield from wrapped(
                [addressed(finding.remedy, given)], f"  {paint('→', 'good', color=color)} ", "    ", width
            )
