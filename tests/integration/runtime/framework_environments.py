"""Environments with the real frameworks, each created once in ~/.cache/elasticjob (up to 200 MB).

They use torch of the tests' own environment, which takes 5 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

TRANSFORMERS = ("transformers==5.23.0", "accelerate==1.15.0")
LIGHTNING = ("lightning==2.6.6",)
SOURCES = ("datasets==5.2.0", "torchdata==0.11.0", "webdataset==1.0.2", "pyarrow==26.0.1")


def interpreter(packages: tuple[str, ...]) -> Path:
    """Skips the test if the packages are not installed and cannot be."""
    name = f"{packages[0].replace('==', '-')}-python{sys.version_info[0]}.{sys.version_info[1]}"
    folder = Path.home() / ".cache" / "elasticjob" / name
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        new = folder.with_name(f"{name}.{os.getpid()}")  # another test process may do the same
        venv.create(new, with_pip=True, clear=True)
        found = subprocess.run(
            [new / "bin" / "python", "-m", "pip", "install", "-q", "--no-cache-dir", *packages],
            env={**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")},  # torch counts as installed
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode:
            pytest.skip(f"cannot install {' '.join(packages)}: {found.stderr[-500:]}")
        (new / "done").touch()
        if not folder.exists():
            new.rename(folder)
    return python


def site_packages(packages: tuple[str, ...]) -> str:
    """The folder that has them, for the path of another interpreter."""
    command = [str(interpreter(packages)), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(source: Path) -> dict[str, str]:
    """For processes of that interpreter: the runtime in `source`, and torch of this one."""
    path = os.pathsep.join((str(source), sysconfig.get_path("purelib")))
    return {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
