"""`python -m hack.demo run|install|down`, on the cluster that `CLUSTER` selects (own, kind or current)."""

from __future__ import annotations

import argparse
import sys

from hack.demo import run as course
from hack.drivers import DriverError, KubeError, cluster_driver
from hack.images.machine import MirrorError
from hack.steps import StepError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hack.demo",
        description="Trains an elastic job with an ElasticSession, and deletes a pod halfway.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="set up cluster, images and chart, then run the job and follow it")
    run.add_argument(
        "--delete-at",
        type=int,
        default=course.HALFWAY,
        metavar="STEP",
        help=f"step at which a worker pod is deleted (default: {course.HALFWAY})",
    )
    run.add_argument(
        "--time-limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time in which the job must finish (default: 300)",
    )
    commands.add_parser("install", help="set up cluster, images and chart only")
    commands.add_parser("down", help="remove everything that the demo created")
    arguments = parser.parse_args()
    try:
        driver = cluster_driver()
        if arguments.command == "run":
            return course.run(driver, arguments.delete_at, arguments.time_limit)
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
