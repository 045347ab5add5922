"""The Debian packages a machine needs to run nodes and build images. The control plane without nodes needs none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.steps import Steps

from .output import ClusterError, environment

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
"""Package -> a file (or pattern) that shows it is installed."""

CNI_PLUGINS = Path("/usr/lib/cni")


def missing_packages() -> list[str]:
    root = Path("/")
    return [package for package, file in PACKAGES.items() if not any(root.glob(file.lstrip("/")))]


def install_packages(steps: Steps) -> None:
    """Installs what is missing. Raises ClusterError with the one command to run when it cannot."""
    missing = missing_packages()
    if not missing:
        return
    by_hand = f"as root: apt-get install --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0:
        raise ClusterError(f"these Debian packages are missing; {by_hand}")
    if not shutil.which("apt-get"):
        raise ClusterError(f"this machine is not a Debian (no apt-get); install what these Debian packages hold: {' '.join(missing)}")
    with steps.step(f"Install Debian packages: {' '.join(missing)}", "to run containers and build images", 20):
        # An unreachable third-party source makes `update` fail while Debian's own lists are fine: `install` decides.
        updated = _apt("update")
        installed = _apt("install", "--yes", "--no-install-recommends", *missing)
        if installed.returncode:
            raise ClusterError(f"apt-get failed; {by_hand}\n{updated.stderr.strip()}\n{installed.stderr.strip()}")


def _apt(*arguments: str) -> subprocess.CompletedProcess[str]:
    settings = environment(DEBIAN_FRONTEND="noninteractive")
    return subprocess.run(["apt-get", "-q", *arguments], env=settings, capture_output=True, text=True, check=False)
