"""The base image without a registry: a minimal Debian, installed from packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from hack.images.machine import mirror
from hack.images.recipe import EPOCH
from hack.steps import Step, run_logged

SUITE = "trixie"

_SCRIPT = r"""
set -eu
suite=$1 folder=$2 mirror=$3 archive=$4
debootstrap --variant=minbase "$suite" "$folder/root" "$mirror"
cd "$folder/root"
# As in the published slim images: no documentation, no translations. And nothing specific to this machine.
cat > etc/dpkg/dpkg.cfg.d/slim <<X
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
X
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -type l -delete
find usr/share/doc -type d -empty -delete
rm -rf usr/share/man/* usr/share/info/* usr/share/locale/*
rm -rf var/lib/apt/lists/* var/cache/apt/* var/cache/ldconfig/* var/cache/debconf/*-old var/log/*.log var/log/apt
rm -f etc/apt/sources.list etc/machine-id etc/hostname etc/resolv.conf
: > etc/machine-id
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime --numeric-owner -cf "$archive.part" .
mv "$archive.part" "$archive"
"""

STEPS_AWAY = ("Retrieving", "Validating", "Extracting", "Unpacking", "Configuring")


def base_key() -> str:
    """A key that changes with the build script. Packages have the versions of the day on which it is built."""
    return hashlib.sha256(f"{SUITE}\0{EPOCH}\0{_SCRIPT}".encode()).hexdigest()[:16]


def make_base(archive: Path, log: Path, step: Step) -> None:
    """Makes `archive`, a tar of the base's files. Needs root.

    debootstrap runs in a mount namespace of its own, so that its mounts end with it even when it is killed.
    Raises StepError with the last lines of its output, MirrorError.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="debootstrap-") as folder:
        Path(folder).chmod(0o755)
        shell = ("unshare", "--mount", "--propagation=private", "sh", "-c", _SCRIPT, "sh")
        run_logged(
            [*shell, SUITE, folder, mirror().main, str(archive)],
            log,
            lambda line: step.say(line.removeprefix("I: ")) if any(word in line for word in STEPS_AWAY) else None,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        )


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed run left behind."""
    for leftover in folder.glob("debootstrap-*"):
        shutil.rmtree(leftover, ignore_errors=True)
