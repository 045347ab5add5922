"""`python -m hack.images build [operator runtime trainer]` builds images."""

from __future__ import annotations

import argparse
import sys

from hack.images import NAMES, StepError, build, reference
from hack.steps import Steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.images", description="Container images of the project.")
    commands = parser.add_subparsers(dest="command", required=True)
    build_command = commands.add_parser("build", help="build images and write an archive of each")
    build_command.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one or more of: {', '.join(NAMES)} (default: all)"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown image {', '.join(unknown)}: must be one of {', '.join(NAMES)}")
    try:
        with Steps() as steps:
            archives = build(arguments.names or NAMES, steps)
            for name, archive in archives.items():
                steps.console.print(
                    f"{reference(name)}  {archive.stat().st_size / 1e6:.0f} MB  {archive}", soft_wrap=True
                )
    except StepError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
