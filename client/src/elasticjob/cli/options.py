"""Flags that several commands share, named as kubectl's, and what they connect to."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from elasticjob.errors import ElasticJobError

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient


given: list[tuple[str, str]] = []
"""The cluster that the command's flags name, for the commands that messages suggest."""


class Output(str, enum.Enum):
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    WIDE = "wide"


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs, for the shell. Prints nothing if there is no cluster: a shell waits for it."""
    given = context.params
    try:
        client = connect(given.get("namespace"), given.get("context"), given.get("kubeconfig"), quiet=True)
        return [name for name in client.cluster.names() if name.startswith(incomplete)]
    except ElasticJobError:
        return []


def complete_context(incomplete: str) -> list[str]:
    """Names of the kubeconfig's contexts."""
    import os

    from elasticjob.cluster.kubeconfig import paths, read

    try:
        config = read(paths(None, os.environ), explicit=False)
    except ElasticJobError:
        return []
    return sorted(each for each in map(str, config.get("contexts", {})) if each.startswith(incomplete))


def _names(given: str | list[str] | None) -> str | list[str] | None:
    from elasticjob.decisions.flag_values import job_name

    return job_name(given) if isinstance(given, str) else given and [job_name(each) for each in given]


JobName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the job.", autocompletion=complete_job, callback=_names)
]
JobNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Names of jobs.", autocompletion=complete_job, callback=_names),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Default: that of the context.", metavar="NAMESPACE")
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Context of the kubeconfig. Default: the current one.",
        metavar="CONTEXT",
        autocompletion=complete_context,
    ),
]
Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", help="Kubeconfig file. Default: KUBECONFIG, ~/.kube/config.", metavar="FILE"),
]


def _format(given: str | None) -> str | None:
    if given is not None and given not in list(Output) and not given.startswith("jsonpath="):
        raise typer.BadParameter(f"{given} is none of {', '.join(Output)}, jsonpath=TEMPLATE.")
    return given


OutputFormat = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", help="json, yaml, name, wide, or jsonpath=TEMPLATE.", metavar="FORMAT", callback=_format
    ),
]
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Leave out the titles of the table.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", help="How long to wait at most, such as 10m. Default: no limit.", metavar="TIME"),
]


def connect(
    namespace: str | None, context: str | None, kubeconfig: str | None, *, quiet: bool = False
) -> ElasticJobClient:
    """Raises UnreachableError if there is no kubeconfig."""
    from elasticjob.cli.output import note
    from elasticjob.sdk.client import ElasticJobClient

    def warn(message: str) -> None:
        if not quiet:
            note(f"Warning: {message}")

    def on_slow(server: str) -> None:
        if not quiet and sys.stderr.isatty():
            note(f"Waiting for the API server {server} ...")

    flags = [("-n", namespace), ("--context", context), ("--kubeconfig", kubeconfig)]
    given[:] = [(flag, value) for flag, value in flags if value]
    return ElasticJobClient(namespace, context=context, kubeconfig=kubeconfig, warn=warn, on_slow=on_slow)
