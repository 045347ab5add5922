"""`make test`: the tests that prove every promise, and `make nightly`: all tests.

End-to-end tests run only where this process may make a cluster's nodes (as root). The programs of the test cluster are
built first: almost every test after the unit tests needs one of them. The stages run one after the other, the quick
ones first, so that a failure shows early.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hack import images
from hack.cluster.programs import programs_built

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Stage:
    """One pytest run."""

    name: str
    arguments: tuple[str, ...]
    marks: str = ""
    """Which of its tests run, as pytest's `-m` takes it; empty: all."""
    needs_nodes: bool = False

    def command(self, nightly: bool) -> list[str]:
        """For pytest. Without `nightly`, tests that are marked so are left out."""
        marks = " and ".join(filter(None, (self.marks, "" if nightly else "not nightly")))
        return [sys.executable, "-m", "pytest", "-q", *self.arguments, *(("-m", marks) if marks else ())]


# All but unit tests mostly wait for other processes: it takes several at a time to keep two cores busy. Those of the
# runtime import torch again and again; those of operator, client and chart wait most, and need an API server for each
# process of pytest, which would only cost processor time while the others run.
STAGES = (
    Stage("unit", ("-n", "2", "tests/unit")),
    Stage("contract", ("-n", "4", "--dist", "worksteal", "tests/contract")),
    Stage(
        "integration",
        ("-n", "6", "--dist", "worksteal", "tests/integration", "--ignore-glob=tests/integration/runtime*"),
    ),
    Stage(
        "integration, runtime",
        (
            "-n",
            "4",
            "--dist",
            "worksteal",
            *(f"tests/integration/runtime{part}" for part in ("", "_session", "_torchrun")),
        ),
    ),
    Stage("end-to-end", ("-n", "3", "--dist", "loadfile", "tests/e2e"), "not alone", needs_nodes=True),
    Stage("end-to-end, alone", ("tests/e2e",), "alone", needs_nodes=True),
)


GIB = 2**30
DISK, PROGRAMS, IMAGES = 4 * GIB, 10 * GIB, 8 * GIB
"""Bytes that the tests take at most, in the folder for temporary files and for images that changed; and what programs
and images take that are not in the cache yet. An etcd whose disk is full ends with a Go panic, which says nothing of
the disk."""


def main() -> int:
    folder = tempfile.gettempdir()
    needed = DISK + (0 if programs_built() else PROGRAMS) + (0 if any(images.FOLDER.glob("*/trainer.tar")) else IMAGES)
    if refused := too_little_disk(folder, shutil.disk_usage(folder).free, needed):
        print(refused)
        return 1
    if subprocess.run([sys.executable, "-m", "hack.cluster", "build"], cwd=ROOT, check=False).returncode:
        return 1
    results = []
    for stage in STAGES:
        if stage.needs_nodes and not can_make_nodes():
            print(f"{stage.name} tests: not run, since nodes need root (or CLUSTER=current)")
        else:
            results.append(run(stage, nightly="--nightly" in sys.argv[1:]))
    print(*results, sep="\n")
    return 1 if any(result.failed for result in results) else 0


def too_little_disk(folder: str, free: int, needed: int) -> str | None:
    """Why the tests, which need so many bytes, cannot run with `free` bytes in `folder`."""
    if free >= needed:
        return None
    return (
        f"{folder} has {free / GIB:.1f} GiB free, the tests need {needed // GIB} GiB: "
        "free some, or set TMPDIR to a folder on a larger disk"
    )


def can_make_nodes() -> bool:
    """True for root, and for any cluster that is not made here."""
    return os.environ.get("CLUSTER", "own") != "own" or os.geteuid() == 0


@dataclass(frozen=True)
class Result:
    """What became of a stage."""

    name: str
    seconds: float
    failed: bool

    def __str__(self) -> str:
        return f"== {self.name} tests {'FAILED' if self.failed else 'passed'} in {self.seconds:.0f} s"


def run(stage: Stage, nightly: bool) -> Result:
    print(f"== {stage.name} tests", flush=True)
    started = time.monotonic()
    code = subprocess.run(stage.command(nightly), cwd=ROOT, check=False).returncode
    result = Result(stage.name, time.monotonic() - started, failed=code != 0)
    print(result, flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
