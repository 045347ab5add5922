"""The plug-in with another torch: `python -m tests.integration.runtime_torchrun.versions 2.6.0 [arguments for pytest]`.

Creates an environment for each version in ~/.cache/elasticjob (once; PyPI's torch with its CUDA libraries takes 5 GB),
and runs the tests of this directory there. Not part of `make test` because of its size.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent.relative_to(ROOT)
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "numpy", "rich", "pyyaml")


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {'.'.join(HERE.parts)}.versions", description=__doc__)
    parser.add_argument("version", help="of torch, such as 2.6.0")
    arguments, for_pytest = parser.parse_known_args()
    python = environment(arguments.version)
    found = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout
    print(f"torch {found.strip()} in {python.parents[1].name}", flush=True)
    paths = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "trainer-runtime" / "src"),
    }  # the plug-in of this checkout, wherever it was installed from
    return subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE, *for_pytest], cwd=ROOT, env=paths, check=False
    ).returncode


def environment(version: str) -> Path:
    """The interpreter of an environment with this torch, which is created if missing."""
    folder = Path.home() / ".cache" / "elasticjob" / f"torch-{version}"
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        print(f"installing torch {version} (some minutes, once)", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--no-cache-dir"]
        subprocess.run([*pip, f"torch=={version}", *TOOLS], check=True)
        subprocess.run([*pip, "--no-deps", "-e", str(ROOT / "trainer-runtime")], check=True)
        done.touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
