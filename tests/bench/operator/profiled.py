"""The operator under cProfile: `python -m tests.bench.operator.profiled FILE` writes the profile at its end. Every call costs more here."""

from __future__ import annotations

import asyncio
import cProfile
import os
import sys

from elasticjob_operator.app import App
from elasticjob_operator.settings import Settings


def main() -> None:
    profile = cProfile.Profile()
    try:
        profile.runcall(asyncio.run, App(Settings.from_environment(os.environ)).run())
    finally:
        profile.dump_stats(sys.argv[1])


if __name__ == "__main__":
    main()
