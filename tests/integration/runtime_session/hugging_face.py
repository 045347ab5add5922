"""Scripts that need Hugging Face's real packages."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Mapping

from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import SOURCE
from tests.integration.runtime_session.conftest import Run

ROOT = pathlib.Path(__file__).parents[3]


def python() -> pathlib.Path:
    return framework_environments.interpreter(framework_environments.TRANSFORMERS)


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    found = framework_environments.environment(SOURCE)
    return {**found, **settings, "PYTHONPATH": f"{found['PYTHONPATH']}{os.pathsep}{ROOT}"}


def train_undisturbed(script: pathlib.Path, settings: Mapping[str, str], output: pathlib.Path) -> Run:
    """One process, plain python, without DDP."""
    given = {**os.environ, **environment(settings), "STEP_SECONDS": "0", "OUTPUT": str(output)}
    subprocess.run([python(), script], env=given, check=True)
    return Run.read(output)
