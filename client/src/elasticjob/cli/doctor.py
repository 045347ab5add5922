"""`doctor`: is everything there that jobs need?"""

from __future__ import annotations

from typing import Annotated

import typer

from elasticjob.cli.options import Context, Kubeconfig, Namespace, complete_job, connect, given
from elasticjob.errors import Exit


def doctor(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A job to look at too.", autocompletion=complete_job)
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check the cluster, the operator, your rights and a job, with a remedy for each problem."""
    from elasticjob.cli.output import layout, say
    from elasticjob.decisions.doctor import Verdict
    from elasticjob.sdk.diagnosis import diagnose
    from elasticjob.views.doctor import report

    found = diagnose(connect(namespace, context, kubeconfig).cluster, name)
    say(report(found, flags=given, **layout()))
    if any(each.verdict is Verdict.BAD for each in found):
        raise typer.Exit(Exit.ERROR)
