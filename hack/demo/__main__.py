"""`python -m hack.demo run|install|down`, on the cluster that `CLUSTER` names (own, kind, current)."""

from __future__ import annotations

import argparse
import sys

from hack.demo import run as course
from hack.drivers import DriverError, KubeError, cluster_driver
from hack.images.machine import MirrorError
from hack.steps import StepError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hack.demo", description="An elastic job on real data that loses a pod, from nothing."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="cluster, images and chart, then the job, followed to its end")
    run.add_argument(
        "--lose-at", type=int, metavar="STEP", help="step at which a worker pod is deleted (default: half-way)"
    )
    run.add_argument(
        "--time-limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="for the job, from apply to its end (default: 300)",
    )
    commands.add_parser("install", help="cluster, images and chart only")
    commands.add_parser("down", help="take away what the demo made")
    arguments = parser.parse_args()
    try:
        driver = cluster_driver()
        if arguments.command == "run":
            return course.run(driver, arguments.lose_at, arguments.time_limit)
        if arguments.command == "install":
            course.set_up(driver)
        else:
            course.take_down(driver)
    except (DriverError, KubeError, StepError, MirrorError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
