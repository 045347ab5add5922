"""`python -m hack.quickstart`: see run.py."""

from __future__ import annotations

import argparse
import sys

from hack.quickstart.run import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hack.quickstart", description="Elastic training on this machine, without a cluster."
    )
    parser.add_argument("--steps", type=int, default=800, help="training steps (default: 800)")
    parser.add_argument("--time-limit", type=float, default=170.0, metavar="SECONDS", help="default: 170")
    arguments = parser.parse_args()
    try:
        return run(arguments.steps, arguments.time_limit)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
