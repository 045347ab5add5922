"""`init`: a starter to copy from: script, Dockerfile and manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasticjob.decisions.job_request import check_name
from elasticjob.errors import AlreadyExistsError

FILES = ("train.py", "Dockerfile", "job.yaml", "checkpoints.yaml")


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the files.")] = Path(),
    name: Annotated[str, typer.Option("--name", help="Name of the job. Default: that of the folder.")] = "",
    image: Annotated[str, typer.Option("--image", "-i", help="Name of the image to build.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files without asking.")] = False,
) -> None:
    """Write a training script, a Dockerfile and manifests to start from."""
    from importlib import resources

    from elasticjob.cli.files import write
    from elasticjob.cli.output import say

    job = name or _name_of(folder)
    check_name(job)
    known = [path for path in FILES if (folder / path).exists()]
    if known and not force:
        raise AlreadyExistsError(
            f"{folder.resolve()} has {', '.join(known)} already.", "Choose another folder, or overwrite with --force."
        )
    values = {"NAME": job, "IMAGE": image or f"registry.example/{job}:1"}
    for file in FILES:
        text = (resources.files("elasticjob") / "starter" / file).read_text(encoding="utf-8")
        for word, value in values.items() if file.endswith(".yaml") else ():
            text = text.replace(word, value)
        write(folder / file, text.encode(), force=True)
        say(f"{folder / file}")
    say(
        [
            "",
            f"1. Build and push the image: docker build -t {values['IMAGE']} {folder} && docker push {values['IMAGE']}",
            f"2. Create the volume for checkpoints: kubectl apply -f {folder / 'checkpoints.yaml'}",
            f"3. Submit the job: elasticjob submit -f {folder / 'job.yaml'} --follow",
        ]
    )


def _name_of(folder: Path) -> str:
    import re

    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "train"
