"""`plot`: a job's history as one self-contained file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticjob.cli.options import Context, JobName, Kubeconfig, Namespace, connect
from elasticjob.errors import ElasticJobError, UsageError

_FORMATS = (".html", ".svg", ".png", ".pdf")


def plot(
    name: JobName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File: .html, .svg, .png or .pdf. Default: NAME.html.")
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
        raise UsageError(f"--output {file}: the name must end with .html, .svg, .png or .pdf.")
    client = connect(namespace, context, kubeconfig)
    job = client.get(name)
    history = read_history(job.manifest)
    with progress(f"Drawing {file}"):
        from elasticjob.views.report import figure, page
        from elasticjob.views.svg import image

        now = client.cluster.api.now()
        if file.suffix.lower() == ".html":
            content = page(job.state, history, now).encode()
        elif file.suffix.lower() == ".svg":
            content = image(job.state, history, now).encode()
        else:
            content = _image(figure(job.state, history, now), file.suffix[1:].lower())
    write(file, content, force=force)
    say(f"{file} is written ({len(content) / 1e6:.2f} MB).")


def _image(figure: object, format_: str) -> bytes:
    """plotly draws images with kaleido, which runs a Chrome."""
    try:
        content: bytes = figure.to_image(format=format_, width=1100, height=800)  # type: ignore[attr-defined]
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise ElasticJobError(
            f"Cannot draw {format_}: {str(error).strip().splitlines()[0]}",
            "Install what draws it: pip install 'elasticjob[images]', and Chrome. HTML and SVG need neither.",
        ) from error
    return content
