"""`make check-torch VERSION=2.9`: the tests that depend on torch, with the newest 2.9 from the package index.

They run in an environment of their own, which takes up to 7 GB with the CUDA libraries that PyPI's torch requires, and
is deleted afterwards. Not part of `make test` because of its size.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "trainer-runtime"
TOOLS = (
    *("cryptography", "hypothesis", "numpy", "packaging"),
    *("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "pyyaml", "rich"),
)
TESTS = (
    "tests/unit/runtime/training",
    "tests/unit/runtime/data",
    "tests/contract/test_session_backends.py",
    "tests/integration/runtime_session",
    "tests/integration/runtime/test_save_requests.py",
    "tests/integration/runtime/test_memory_snapshots.py",
    "tests/integration/runtime_torchrun",
)
"""Sessions, checkpoints, the sampler, and the plug-in for torchrun."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.torch_versions", description=__doc__)
    parser.add_argument("version", type=_version, help="of torch: 2.9 is the newest 2.9.x")
    version: str = parser.parse_args().version
    with tempfile.TemporaryDirectory(prefix=f"torch-{version}-") as folder:
        return check(version, Path(folder))


def check(version: str, folder: Path) -> int:
    """Makes the environment in `folder`, and runs the tests in it. Returns pytest's exit code."""
    python = folder / "bin" / "python"
    print(f"installing torch {version} (takes about 2 minutes)", flush=True)
    venv.create(folder, with_pip=True)
    pip = [os.fspath(python), "-m", "pip", "install", "-q", "--no-cache-dir"]
    subprocess.run([*pip, *requirements(version, (ROOT / "constraints.txt").read_text())], check=True)
    subprocess.run([*pip, "--no-deps", "-e", os.fspath(RUNTIME)], check=True)
    subprocess.run([python, "-c", "import torch; print('torch', torch.__version__, flush=True)"], check=True)
    command = [os.fspath(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def requirements(version: str, constraints: str) -> list[str]:
    """What pip installs: this torch, and the tools of the tests as pinned for development.

    >>> requirements("2.9", "numpy==2.4.6\\ntorch==2.15.0\\n")
    ['torch==2.9.*', 'numpy==2.4.6']
    """
    pinned = [line for line in constraints.splitlines() if line.partition("==")[0].lower() in TOOLS]
    return [f"torch=={version}{'.*' if version.count('.') == 1 else ''}", *pinned]


def _version(text: str) -> str:
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version of torch, such as 2.9 or 2.9.1")
    return text


if __name__ == "__main__":
    sys.exit(main())
