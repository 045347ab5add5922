"""The commands, and what becomes of errors: a sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from elasticjob.errors import ElasticJobError, Exit

app = typer.Typer(
    name="elasticjob",
    help="Submit and look after ElasticJobs: elastic, fault-tolerant PyTorch training on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from elasticjob.version import version  # slow to find out

        typer.echo(f"elasticjob {version()}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


def run(arguments: Sequence[str], program: str = "elasticjob") -> int:
    """Returns the exit code."""
    try:
        app(list(arguments), prog_name=program)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else Exit.ERROR
    except ElasticJobError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 stderr is for people
        return error.code
    return Exit.OK
