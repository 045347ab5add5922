"""`python -m hack.release build` builds a release in dist/; `version [VERSION]` shows and checks, or sets, the version;
`notes` prints its section of the changelog."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
from pathlib import Path

from hack.images.recipe import published_base
from hack.release import artifacts, version
from hack.steps import CACHE, StepError, Steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.release", description="Builds what a release publishes.")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="wheels, sdists, chart, manifest, images, SBOMs and checksums")
    build.add_argument(
        "--output", type=Path, default=version.ROOT / "dist", help="folder, emptied first (default: dist)"
    )
    build.add_argument(
        "--registry", default="", help="where the images will be pushed, such as ghcr.io/example (default: nowhere)"
    )
    build.add_argument("--without-images", action="store_true", help="for a machine that cannot build images")
    build.add_argument(
        "--published-base",
        action="store_true",
        help="build the images on the Debian image that the Dockerfile pins by digest, not on one made from packages",
    )
    number = commands.add_parser("version", help="without an argument: check that all places name the same version")
    number.add_argument("version", nargs="?", metavar="VERSION", help="the version to set everywhere, such as 0.2.0")
    commands.add_parser("notes", help="print what the changelog says of this version")
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            if arguments.published_base:
                os.environ["BASE_IMAGE"] = published_base()
            _check_base(os.environ.get("BASE_IMAGE", ""))
            _build(arguments.output.resolve(), arguments.registry, images=not arguments.without_images)
        elif arguments.command == "notes":
            print(version.notes())
        elif arguments.version:
            version.write(arguments.version, datetime.datetime.now(datetime.timezone.utc).date())
        else:
            version.check()
            print(version.read())
    except (StepError, version.VersionError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _check_base(image: str) -> None:
    if image and "@sha256:" not in image:
        raise StepError(
            f"BASE_IMAGE={image} has no digest: a release names its base by digest, as in {published_base()}"
        )


def _build(dist: Path, registry: str, *, images: bool) -> None:
    version.check()
    number = version.read()
    log = CACHE / "release.log"
    log.unlink(missing_ok=True)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with Steps() as steps:
        with steps.step("wheels and sdists", "", 20):
            files = artifacts.distributions(dist, log)
        with steps.step("chart and install.yaml", "", 2):
            files += artifacts.chart(dist, number, registry, log)
        if images:
            archives = artifacts.image_archives(dist, number, registry, steps)
            with steps.step("SBOMs", "the packages in each image", 20):
                files += [*archives, *artifacts.sboms(archives, log)]
        files.append(artifacts.checksums(dist, files))
        for path in files:
            steps.console.print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
