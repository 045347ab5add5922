"""`plot`: a job's history as one self-contained file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticjob.cli.options import Context, JobName, Kubeconfig, Namespace, connect
from elasticjob.errors import UsageError

_FORMATS = (".html", ".svg", ".png")


def plot(
    name: JobName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File: .html, .svg or .png. Default: NAME.html.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file without asking.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Draw a job's history: world size, restarts and their causes, step rate, goodput. Also after its end."""
    from elasticjob.cli.files import write
    from elasticjob.cli.output import progress, say
    from elasticjob.sdk.history import read_history

    file = output or Path(f"{name}.html")
    if file.suffix.lower() not in _FORMATS:
        raise UsageError(f"--output {file}: the name must end with .html, .svg or .png.")
    client = connect(namespace, context, kubeconfig)
    job = client.get(name)
    history = read_history(job.manifest)
    with progress(f"Drawing {file}"):
        from elasticjob.views.page import page
        from elasticjob.views.png import to_png
        from elasticjob.views.svg import image

        now = client.cluster.api.now()
        match file.suffix.lower():
            case ".html":
                content = page(job.state, history, now).encode()
            case ".svg":
                content = image(job.state, history, now).encode()
            case _:
                content = to_png(image(job.state, history, now))
    write(file, content, force=force)
    say(f"{file} is written ({len(content) / 1e6:.2f} MB).")
