"""Stands in for Docker and a registry in tests of tutorials: buildah and its store, and the nodes of the test cluster.

    docker build, tag, push, save        as far as the pages and `make images` use them

What is pushed is loaded into the nodes under its name, as if they had pulled it. Public base images cannot be had here:
a Dockerfile gets our image with torch and the digits in their place, and what pip would install is there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from hack import cluster
from hack.images import FOLDER, reference

STORE = FOLDER / "buildah"
OURS = "/usr/local/lib/python3*/dist-packages/elasticjob_runtime* /usr/local/bin/elasticrun"
"""What a public image does not have."""
BASE = f"FROM {reference('trainer')}\nUSER root\nRUN ln -sf python3 /usr/bin/python && rm -rf {OURS}\n"


def buildah(*words: str) -> None:
    driver = (STORE / "driver").read_text(encoding="utf-8").strip()
    options = ["--root", str(STORE / "storage"), "--runroot", "/run/elasticjob-images", "--storage-driver", driver]
    subprocess.run(["buildah", *options, *words], check=True)


def build(arguments: argparse.Namespace) -> None:
    if arguments.target:  # one of ours: the test has built it
        buildah("inspect", "--type", "image", "--format", "{{.FromImage}}", arguments.tag)
        return
    text = Path(arguments.file).read_text(encoding="utf-8")
    assert re.match(r"FROM python:[\w.-]+\n(RUN pip install [^\n]*\n)*", text), text
    with tempfile.NamedTemporaryFile("w", suffix=".dockerfile") as file:
        file.write(BASE + re.sub(r"^(FROM|RUN pip) .*\n", "", text, flags=re.MULTILINE))
        file.flush()
        buildah("build", "--isolation", "chroot", "--pull=false", "--file", file.name, "-t", arguments.tag, ".")


def push(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        archive = Path(folder) / "image.tar"
        buildah("push", "--quiet", arguments.image, f"docker-archive:{archive}:{arguments.image}")
        cluster.load_image(archive)


def main() -> None:
    parser = argparse.ArgumentParser(prog="docker")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("-t", "--tag", required=True)
    building.add_argument("-f", "--file", default="Dockerfile")
    building.add_argument("--target")
    building.add_argument("--progress")
    building.add_argument("--build-arg", action="append")
    building.add_argument("context")
    pushing = commands.add_parser("push")
    pushing.add_argument("image")
    tagging = commands.add_parser("tag")
    tagging.add_argument("image")
    tagging.add_argument("name")
    saving = commands.add_parser("save")
    saving.add_argument("--output", required=True)
    saving.add_argument("image")
    arguments = parser.parse_args()
    match arguments.command:
        case "build":
            build(arguments)
        case "push":
            push(arguments)
        case "tag":
            buildah("tag", arguments.image, arguments.name)
        case _:
            buildah("push", "--quiet", arguments.image, f"docker-archive:{arguments.output}:{arguments.image}")


if __name__ == "__main__":
    main()
