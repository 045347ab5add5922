"""`doctor`: is everything there that jobs need?"""

from __future__ import annotations

import typer

from elasticjob.cli.options import OptionalJobName, connect, given
from elasticjob.errors import Exit


def doctor(
    name: OptionalJobName = None,
) -> None:
    """Check the cluster, the operator, your rights and, with a name, that job; with a remedy for each problem."""
    from elasticjob.cli.output import layout, say
    from elasticjob.decisions.doctor import Verdict
    from elasticjob.sdk.diagnosis import diagnose
    from elasticjob.views.doctor import report

    found = diagnose(connect().cluster, name)
    say(report(found, flags=given, **layout()))
    if any(each.verdict is Verdict.BAD for each in found):
        raise typer.Exit(Exit.ERROR)
