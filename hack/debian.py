"""Installs missing Debian packages, one caller at a time: cluster and images are built concurrently, but apt has one
lock."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence

from hack.steps import CACHE, StepError, Steps


def install(packages: Sequence[str], steps: Steps, why: str) -> None:
    """Installs `packages`. Raises StepError with the command to run by hand if that fails."""
    by_hand = f"as root: apt-get install --no-install-recommends {' '.join(packages)}"
    if os.geteuid() != 0:
        raise StepError(f"these Debian packages are missing; {by_hand}")
    if not shutil.which("apt-get"):
        raise StepError(
            f"this machine has no apt-get; install the equivalents of these Debian packages: {' '.join(packages)}"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    with steps.step(f"Install Debian packages: {' '.join(packages)}", why, 30), (CACHE / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # An unreachable third-party source makes `update` fail while Debian's own lists are fine: `install` decides.
        updated = _apt("update")
        installed = _apt("install", "--yes", "--no-install-recommends", *packages)
        if installed.returncode:
            raise StepError(f"apt-get failed; {by_hand}\n{updated.stderr.strip()}\n{installed.stderr.strip()}")


def _apt(*arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
