"""The injected launcher, as it lies in a runtime image, with real interpreters."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elasticjob_runtime import launch
from elasticjob_runtime.contract import Env, ExitCode
from elasticjob_runtime.version import version_in

ROOT = Path(__file__).resolve().parents[3] / "trainer-runtime"
BARE = str(Path(sys.base_prefix, "bin", "python3"))
"""The interpreter of this environment, without what is installed here: an image that never heard of us."""


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """The content of a runtime image."""
    folder = tmp_path / "mounted"
    shutil.copytree(ROOT / "src" / "elasticjob_runtime", folder / "python" / "elasticjob_runtime")
    (folder / "python" / "elasticjob_runtime-9.8.7.dist-info").mkdir()
    shutil.copy(ROOT / "launch.py", folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "elasticrun").write_text('#!/bin/sh\nexec "${PYTHON:-python3}" -m elasticjob_runtime "$@"\n')
    (folder / "bin" / "elasticrun").chmod(0o755)
    return folder


def run(
    runtime: Path, *words: str, python: str = BARE, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], Env.TERMINATION_LOG: str(runtime / "termination-log"), **variables}
    return subprocess.run(
        [python, str(runtime / "launch.py"), *words],
        capture_output=True, text=True, check=False, env=environment, cwd=folder, timeout=120,
    )  # fmt: skip


def test_the_runtime_comes_after_the_users_own_paths(runtime: Path) -> None:
    shell = 'echo "$PYTHONPATH"; echo "$PATH"'
    result = run(runtime, "sh", "-c", shell, PYTHONPATH="/mine:/theirs", ELASTICJOB_RUNTIME="registry/runtime:1")
    assert result.stdout.splitlines() == [
        f"/mine:/theirs:{runtime}/python",
        f"{os.environ['PATH']}:{runtime}/bin",
    ]
    version = ".".join(map(str, sys.version_info[:3]))
    assert result.stderr == f"elasticjob: runtime 9.8.7 from registry/runtime:1, Python {version} ({BARE})\n"


def test_without_a_path_of_the_image_the_systems_default_stays() -> None:
    environment: dict[str, str] = {}
    launch.append(environment, "PATH", "/opt/elasticjob/bin")
    launch.append(environment, "PYTHONPATH", "/opt/elasticjob/python")
    assert environment == {"PATH": f"{os.defpath}:/opt/elasticjob/bin", "PYTHONPATH": "/opt/elasticjob/python"}


def test_a_python_script_runs_under_elasticrun(runtime: Path, tmp_path: Path) -> None:
    script = "import os, sys, elasticjob_runtime as e; print(os.environ['RANK'], e.__file__, sys.argv[1:])"
    (tmp_path / "train.py").write_text(script)
    result = run(runtime, BARE, "train.py", "--lr=1", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"0 {runtime}/python/elasticjob_runtime/__init__.py ['--lr=1']\n"
    assert f"; elasticrun runs the {BARE} command\n" in result.stderr.splitlines(keepends=True)[0]


def test_a_shell_finds_elasticrun(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.environ['RANK'])")
    path = f"{Path(BARE).parent}:/usr/bin:/bin"
    result = run(runtime, "sh", "-c", "elasticrun train.py", folder=tmp_path, PATH=path)
    assert result.stdout == "0\n", result.stderr


def test_a_runtime_of_the_image_comes_first(runtime: Path) -> None:
    result = run(runtime, "sh", "-c", 'echo "${PYTHONPATH-none}"', python=sys.executable)
    assert result.stdout == "none\n"
    assert result.stderr.startswith(f"elasticjob: runtime {version_in(str(ROOT / 'src'))} of the image (")


def test_a_runtime_on_the_users_pythonpath_comes_first(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elasticjob_runtime").mkdir()
    (tmp_path / "elasticjob_runtime" / "__init__.py").write_text("")
    result = run(runtime, "sh", "-c", 'echo "$PYTHONPATH"', PYTHONPATH=str(tmp_path))
    assert result.stdout == f"{tmp_path}\n"
    assert f"of the image ({tmp_path})" in result.stderr


def test_elasticrun_of_another_python_in_the_image_runs_as_it_is(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elasticrun").write_text('#!/bin/sh\necho theirs "${PYTHONPATH-none}" "$@"\n')
    (tmp_path / "elasticrun").chmod(0o755)
    result = run(runtime, "elasticrun", "train.py", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert result.stdout == "theirs none train.py\n"
    assert result.stderr.startswith(f"elasticjob: runtime of the image ({tmp_path}/elasticrun), ")


def test_signals_reach_the_command_because_nothing_stays_in_between(runtime: Path) -> None:
    process = subprocess.Popen(
        [BARE, str(runtime / "launch.py"), "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True
    )
    assert process.communicate(timeout=60)[0] == f"{process.pid}\n"


def test_a_missing_program_is_named_in_log_and_termination_message(runtime: Path) -> None:
    result = run(runtime, "torchrum", "train.py", PATH="/usr/bin:/bin")
    assert result.returncode == 127
    sentence = f"elasticjob: the image has no program 'torchrum' (PATH is /usr/bin:/bin:{runtime}/bin)"
    assert result.stderr.splitlines()[-1] == sentence
    assert (runtime / "termination-log").read_text() == f"{sentence}\n"


def test_a_program_that_may_not_be_executed_is_named(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    result = run(runtime, "./train.sh", folder=tmp_path)
    assert result.returncode == 126
    assert result.stderr.splitlines()[-1] == "elasticjob: cannot run './train.sh': Permission denied"


def test_a_python_that_is_too_old_is_told_so(runtime: Path) -> None:
    source = (ROOT / "launch.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 4))  # the oldest that this can check
    too_new = runtime / "too-new.py"
    too_new.write_text(source.replace("OLDEST = (3, 10)", "OLDEST = (9, 9)"))
    environment = {Env.TERMINATION_LOG: str(runtime / "termination-log")}
    result = subprocess.run(
        [BARE, str(too_new), "elasticrun"], capture_output=True, text=True, check=False, env=environment
    )
    assert result.returncode == ExitCode.RUNTIME_UNUSABLE
    assert result.stderr.startswith(f"elasticjob: the runtime needs Python 9.9 or newer, but {BARE} of the image is 3.")
    assert (runtime / "termination-log").read_text() == result.stderr


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8", "3.9"])
def test_old_interpreters_read_the_launcher(runtime: Path, version: str) -> None:
    """Where this machine has them."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} here")
    result = run(runtime, "elasticrun", "train.py", python=python)
    assert result.returncode == ExitCode.RUNTIME_UNUSABLE
    assert "the runtime needs Python 3.10 or newer" in result.stderr


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_interpreters_run_the_agent(runtime: Path, tmp_path: Path, version: str) -> None:
    """Where this machine has them."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} here")
    (tmp_path / "train.py").write_text("import os, sys; print(os.environ['RANK'], *sys.version_info[:2], sep='.')")
    result = run(runtime, "elasticrun", "train.py", python=python, folder=tmp_path)
    assert result.stdout == f"0.{version}\n", result.stderr


def test_the_launcher_uses_the_names_of_the_contract() -> None:
    assert launch.SOURCE == Env.RUNTIME
    assert launch.TERMINATION_LOG == Env.TERMINATION_LOG
    assert f"UNUSABLE = {ExitCode.RUNTIME_UNUSABLE.value} " in (ROOT / "launch.py").read_text(encoding="utf-8")
