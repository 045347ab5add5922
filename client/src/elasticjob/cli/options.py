"""Flags that several commands share, named as kubectl's, and what they connect to."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticjob.errors import ElasticJobError, UsageError

if TYPE_CHECKING:
    from elasticjob.sdk.client import ElasticJobClient


chosen: dict[str, Any] = {}
"""What the command's global flags say, by the names in GLOBAL."""
given: list[tuple[str, ...]] = []
"""The same as words of a command line, for the commands that messages suggest."""


class Output(str, enum.Enum):
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    WIDE = "wide"


def _choose(flags: Mapping[str, Any]) -> None:
    """A flag that is not given leaves what was chosen before."""
    chosen.update({name: value for name, value in flags.items() if value or name not in chosen})


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs, for the shell. Prints nothing if there is no cluster: a shell waits for it."""
    for level in filter(None, (context.parent, context)):  # flags before the command, then those after it
        _choose(level.params)
    try:
        return [name for name in connect(quiet=True).cluster.names() if name.startswith(incomplete)]
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
    return sorted(context for context in map(str, config.get("contexts", {})) if context.startswith(incomplete))


def _names(given: str | list[str] | None) -> str | list[str] | None:
    from elasticjob.decisions.flag_values import job_name

    return job_name(given) if isinstance(given, str) else given and [job_name(name) for name in given]


JobName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the job.", autocompletion=complete_job, callback=_names)
]
OptionalJobName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Name of the job.", autocompletion=complete_job, callback=_names)
]
JobNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Names of jobs.", autocompletion=complete_job, callback=_names),
]
GLOBAL: dict[str, tuple[Any, Any]] = {
    "namespace": (
        Annotated[
            str | None,
            typer.Option("--namespace", "-n", help="Namespace. Default: that of the context.", metavar="NAMESPACE"),
        ],
        None,
    ),
    "context": (
        Annotated[
            str | None,
            typer.Option(
                "--context",
                help="Context of the kubeconfig. Default: the current one.",
                metavar="CONTEXT",
                autocompletion=complete_context,
            ),
        ],
        None,
    ),
    "kubeconfig": (
        Annotated[
            str | None,
            typer.Option("--kubeconfig", help="Kubeconfig file. Default: KUBECONFIG, ~/.kube/config.", metavar="FILE"),
        ],
        None,
    ),
    "as_user": (Annotated[str | None, typer.Option("--as", help="User to act as.", metavar="USER")], None),
    "as_group": (
        Annotated[list[str] | None, typer.Option("--as-group", help="Group to act as. Repeatable.", metavar="GROUP")],
        None,
    ),
    "local": (
        Annotated[
            bool, typer.Option("--local", help="Use jobs on this machine, run by elasticrun, instead of a cluster.")
        ],
        False,
    ),
    "as_uid": (Annotated[str | None, typer.Option("--as-uid", help="UID to act as.", metavar="UID")], None),
}
"""kubectl's global flags, and --local: parameter -> its annotation and default."""


def with_global_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags that say which cluster it talks to, for `connect`. A flag after the command outranks
    the same one before it."""
    own = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in GLOBAL.items()
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        _choose({name: values.pop(name) for name in GLOBAL})
        command(**values)

    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    return run


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
NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Omit the header of the table.")]
Selector = Annotated[str, typer.Option("--selector", "-l", help="Show only jobs with these labels.", metavar="LABELS")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show jobs of all namespaces.")]
Rank = Annotated[
    int | None,
    typer.Option("--rank", help="Show only the worker pod that runs this rank; with --replica, of it.", metavar="N"),
]
Replica = Annotated[
    int | None, typer.Option("--replica", help="Show only the worker pods of this replica.", metavar="N")
]
Worker = Annotated[
    str | None,
    typer.Option("--worker", help="Show only this worker pod, by its index or its name.", metavar="N|NAME"),
]
AllWorkers = Annotated[bool, typer.Option("--all", help="Show all worker pods, even if there are more than 64.")]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", help="Maximum time to wait, for example 10m. Default: no limit.", metavar="TIME"),
]


def namespace() -> str | None:
    """Of the flag."""
    found: str | None = chosen.get("namespace")
    return found


def check_choice(rank: int | None, replica: int | None, worker: str | None, *, everything: bool) -> None:
    """Raises UsageError if these say twice which worker pods to show."""
    if (rank is not None or replica is not None) + (worker is not None) + everything > 1:
        raise UsageError("Only one of --rank, --worker and --all can be used; --replica goes with --rank only.")


def connect(*, quiet: bool = False) -> ElasticJobClient:
    """The client of the cluster that the global flags name. Raises UnreachableError if there is no kubeconfig."""
    from elasticjob.cli.output import note
    from elasticjob.sdk.client import ElasticJobClient

    def warn(message: str) -> None:
        if not quiet:
            note(f"Warning: {message}")

    def on_slow(server: str) -> None:
        if not quiet and sys.stderr.isatty():
            note(f"Waiting for the API server {server} ...")

    client = ElasticJobClient(
        chosen.get("namespace"),
        context=chosen.get("context"),
        kubeconfig=chosen.get("kubeconfig"),
        as_user=chosen.get("as_user"),
        as_groups=chosen.get("as_group") or (),
        as_uid=chosen.get("as_uid"),
        local=bool(chosen.get("local")),
        warn=warn,
        on_slow=on_slow,
    )
    given[:] = client.flags
    return client
