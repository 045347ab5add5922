"""`plot`: a job's history as one self-contained file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticjob.cli.options import JobName, connect
from elasticjob.errors import UsageError


def plot(
    name: JobName,
    target: Annotated[
        Path | None, typer.Option("--file", help="File: .html, .svg or .png. Default: NAME.html.", metavar="FILE")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="html, svg or png, for NAME.FORMAT.", metavar="FORMAT")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file without asking.")] = False,
) -> None:
    """Draw a job's history: world size, restarts and their causes, step rate, goodput. Also after its end."""
    from elasticjob.cli.files import write
    from elasticjob.cli.output import progress, say
    from elasticjob.sdk.history import FORMATS, drawing

    if output is not None and f".{output}" not in FORMATS:
        raise UsageError(f"-o {output}: write html, svg or png.", f"To name the file: --file {output}")
    file = target or Path(f"{name}.{output or 'html'}")
    if output is not None and file.suffix != f".{output}":
        raise UsageError(f"--file {file} and -o {output} name two formats.", "Leave out one of them.")
    client = connect()
    job = client.get(name)
    with progress(f"Drawing {file}"):
        content = drawing(job.manifest, file.suffix, client.cluster.api.now())
    write(file, content, force=force)
    say(f"{file} is written ({len(content) / 1e6:.2f} MB).")
