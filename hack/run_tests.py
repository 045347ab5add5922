"""`make test`: every test, with end-to-end tests only where this process may make a cluster's nodes (as root).

The programs of the test cluster are built first: almost every test after the unit tests needs one of them. Then two
lanes run side by side, because the end-to-end tests mostly wait for a cluster while the others mostly compute. The
first lane prints as it goes. The end-to-end lane writes to a file, which is printed once it has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
END_TO_END_OUTPUT = ROOT / ".cluster" / "end-to-end.log"


@dataclass(frozen=True)
class Stage:
    """One pytest run."""

    name: str
    arguments: tuple[str, ...]


LOCAL = (
    Stage("unit", ("-n", "2", "tests/unit")),
    Stage("contract", ("-n", "2", "--dist", "loadfile", "tests/contract")),
    # More workers than cores: these tests wait for leases and grace periods more than they compute.
    Stage("integration", ("-n", "4", "--dist", "loadfile", "tests/integration")),
)
"""Tests that need no cluster with nodes."""

END_TO_END = Stage("end-to-end", ("tests/e2e",))


def main() -> int:
    if subprocess.run([sys.executable, "-m", "hack.cluster", "build"], cwd=ROOT, check=False).returncode:
        return 1
    with ThreadPoolExecutor(max_workers=2) as pool:
        lanes = [pool.submit(run_local)]
        if can_make_nodes():
            lanes.append(pool.submit(run_end_to_end))
        else:
            print("end-to-end tests: not run, since nodes need root (or CLUSTER=kind, CLUSTER=current)")
        failed = [name for lane in lanes for name in lane.result()]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def can_make_nodes() -> bool:
    """True for root, and for any cluster that is not made here."""
    return os.environ.get("CLUSTER", "own") != "own" or os.geteuid() == 0


def run_local() -> list[str]:
    """Returns the names of the stages that failed."""
    failed = []
    for stage in LOCAL:
        print(f"== {stage.name} tests", flush=True)
        started = time.monotonic()
        code = subprocess.run(command(stage), cwd=ROOT, check=False).returncode
        print(f"== {stage.name} tests took {time.monotonic() - started:.0f} s", flush=True)
        if code:
            failed.append(stage.name)
    return failed


def run_end_to_end() -> list[str]:
    """Returns the name of the stage if it failed."""
    print(f"== {END_TO_END.name} tests, beside the others; output: {END_TO_END_OUTPUT.relative_to(ROOT)}", flush=True)
    END_TO_END_OUTPUT.parent.mkdir(exist_ok=True)
    started = time.monotonic()
    with END_TO_END_OUTPUT.open("w", encoding="utf-8") as output:
        code = subprocess.run(command(END_TO_END), cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    took = time.monotonic() - started
    text = END_TO_END_OUTPUT.read_text(encoding="utf-8", errors="replace")
    print(f"\n{text}== {END_TO_END.name} tests took {took:.0f} s", flush=True)
    return [END_TO_END.name] if code else []


def command(stage: Stage) -> Sequence[str]:
    return [sys.executable, "-m", "pytest", "-q", *stage.arguments]


if __name__ == "__main__":
    sys.exit(main())
