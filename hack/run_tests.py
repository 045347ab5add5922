"""`make test`: every test, in an order that fails early; end-to-end tests only where there is root for a cluster's
nodes.

The programs of the test cluster and the images are built first, since almost every test after the unit tests needs one
of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One pytest run."""

    name: str
    arguments: tuple[str, ...]
    end_to_end: bool = False


STAGES = (
    Stage("unit", ("-n", "2", "tests/unit")),
    Stage("contract", ("-n", "2", "--dist", "loadfile", "tests/contract")),
    Stage("integration", ("-n", "2", "--dist", "loadfile", "tests/integration")),
    Stage("end-to-end", ("tests/e2e",), end_to_end=True),
)


def main() -> int:
    own = os.environ.get("CLUSTER", "own") == "own"
    without_nodes = own and os.geteuid() != 0
    failed: list[str] = []
    build = [sys.executable, "-m", "hack.cluster", "build"]
    if subprocess.run(build, check=False).returncode:
        return 1
    for stage in STAGES:
        if stage.end_to_end and without_nodes:
            print("end-to-end tests: not run, since nodes need root (or CLUSTER=kind, CLUSTER=current)")
            continue
        started = time.monotonic()
        print(f"== {stage.name} tests", flush=True)
        code = subprocess.run([sys.executable, "-m", "pytest", "-q", *stage.arguments], check=False).returncode
        print(f"== {stage.name} tests took {time.monotonic() - started:.0f} s", flush=True)
        if code:
            failed.append(stage.name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
