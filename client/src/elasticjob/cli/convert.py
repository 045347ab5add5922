"""`elasticjob convert`: files in, a manifest and a report out."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticjob.cli import files
from elasticjob.errors import ElasticJobError, Exit, NotFoundError, UsageError

if TYPE_CHECKING:
    from elasticjob.convert import Converted


class Format(str, enum.Enum):
    """How the manifest is written."""

    YAML = "yaml"
    JSON = "json"


class Report(str, enum.Enum):
    """How the report is written to stderr."""

    TEXT = "text"
    JSON = "json"
    NONE = "none"


def convert(
    filename: Annotated[
        list[str], typer.Option("--filename", "-f", metavar="FILE", help="Manifest to convert; - for stdin.")
    ],
    runtime: Annotated[
        list[str] | None,
        typer.Option("--runtime", metavar="FILE", help="TrainingRuntime or ClusterTrainingRuntime of a TrainJob."),
    ] = None,
    target: Annotated[
        str, typer.Option("--file", metavar="FILE", help="Where to write the manifest; - for stdout.")
    ] = files.STANDARD_STREAM,
    output: Annotated[Format, typer.Option("--output", "-o", help="Format of the manifest.")] = Format.YAML,
    force: Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")] = False,
    name: Annotated[str, typer.Option("--name", help="A new name for the job.")] = "",
    report: Annotated[Report, typer.Option("--report", help="Format of the report on stderr.")] = Report.TEXT,
    comments: Annotated[
        bool, typer.Option("--comments", help="Write the report into the manifest too, as comments.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help=f"Exit with {Exit.INCOMPLETE} if something is missing or not carried over.")
    ] = False,
) -> None:
    """Convert a PyTorchJob, a TrainJob, or an ElasticJob of TorchElastic or DLRover to an ElasticJob.

    Writes the manifest to stdout and a report to stderr: every field that is not carried over, why, and what to do
    instead. Objects that are not jobs stay in the manifest as they are.
    """
    if comments and output is Format.JSON:
        raise UsageError("JSON has no comments: leave out --comments, or write YAML.")
    from elasticjob import convert as conversion  # the API's models take a tenth of a second
    from elasticjob.convert import report as reports

    documents = [document for file in filename for document in conversion.parse(*_read(file))]
    runtimes = [document for file in runtime or [] for document in conversion.parse(*_read(file))]
    converted = conversion.convert_all(documents, runtimes, name=name)
    if output is Format.JSON:
        _write(_json(converted), target, force=force)
    else:
        _write(_manifest(converted, comments=comments), target, force=force)
    if report is not Report.NONE:
        typer.echo(reports.as_json(converted) if report is Report.JSON else reports.text(converted), err=True, nl=False)
    if strict and not reports.is_complete(converted):
        raise typer.Exit(Exit.INCOMPLETE)


def _manifest(converted: list[Converted], *, comments: bool) -> str:
    from elasticjob.convert import dump
    from elasticjob.convert import report as reports

    return "---\n".join((reports.comments(job) if comments else "") + dump(job.manifest) for job in converted)


def _json(converted: list[Converted]) -> str:
    from elasticjob.cli.output import to_json

    manifests = [job.manifest for job in converted]
    one = manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
    return to_json(one) + "\n"


def _write(text: str, output: str, *, force: bool) -> None:
    """Raises AlreadyExistsError if the file exists and the user does not want it replaced."""
    from elasticjob.cli.output import say

    if output == files.STANDARD_STREAM:
        say(text.rstrip("\n"))
    else:
        files.write(Path(output), text.encode(), force=force)


def _read(file: str) -> tuple[str, str]:
    """Raises NotFoundError, ElasticJobError."""
    return files.read(file, missing=NotFoundError, unreadable=ElasticJobError)
