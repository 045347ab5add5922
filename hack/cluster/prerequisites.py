"""The Debian packages a machine needs to run nodes and build images. The control plane without nodes needs none of
them."""

from __future__ import annotations

from pathlib import Path

from hack import debian
from hack.steps import Steps

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
    """Installs what is missing. Raises StepError with the one command to run when it cannot."""
    if missing := missing_packages():
        debian.install(missing, steps, "to run containers and build images")
