"""Installs missing Debian packages, one caller at a time: cluster and images are built concurrently, but apt has one
lock."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from hack.steps import CACHE, StepError, Steps

PACKAGES = {
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "iproute2": "/usr/sbin/ip",
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/lib/*/libc.a",
    "buildah": "/usr/bin/buildah",
    "debootstrap": "/usr/sbin/debootstrap",
}
"""Package -> a file (or pattern) that shows that it is installed. Nodes need all; the control plane without nodes needs
none."""


def install(names: Iterable[str], steps: Steps, why: str) -> None:
    """Installs those of PACKAGES that are missing. Raises StepError with the command to run by hand if that fails."""
    packages = [
        name for name in names if not shutil.which(name) and not any(Path("/").glob(PACKAGES[name].lstrip("/")))
    ]
    if not packages:
        return
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
