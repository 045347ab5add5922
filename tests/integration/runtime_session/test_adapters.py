"""What every adapter for a framework promises, with the real packages under real agents: a training continues in place
through a join, a crash and a leave, and ends with every bit and every report of an undisturbed one."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from hack.support import eventually
from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import SOURCE
from tests.integration.runtime_session import hugging_face
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.session_job import LONG, START, SessionJob

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

HERE = pathlib.Path(__file__).parent

Adapter = Callable[[pathlib.Path], tuple[str, dict[str, str]]]
"""Python, and the environment of the script, for a folder in which it may save."""


def accelerate(_folder: pathlib.Path) -> tuple[str, dict[str, str]]:
    return str(hugging_face.python()), hugging_face.environment({**LONG, "ACCUMULATE": "2"})


def trainer(folder: pathlib.Path) -> tuple[str, dict[str, str]]:
    return str(hugging_face.python()), hugging_face.environment({**LONG, "CHECKPOINTS": str(folder / "saved")})


def lightning(_folder: pathlib.Path) -> tuple[str, dict[str, str]]:
    packages = framework_environments.site_packages(framework_environments.LIGHTNING)
    return sys.executable, {**LONG, "LIGHTNING": packages, "PYTHONPATH": str(SOURCE)}


@pytest.mark.parametrize(
    ("adapter", "reports"),
    [
        pytest.param(accelerate, (), marks=pytest.mark.transformers),
        pytest.param(trainer, ("losses", "evaluations", "epoch", "best"), marks=pytest.mark.transformers),
        pytest.param(lightning, ("validations", "epochs"), marks=pytest.mark.lightning),
    ],
)
def test_a_training_continues_in_place_through_a_join_a_crash_and_a_leave(
    adapter: Adapter, reports: tuple[str, ...], etcd: str, tmp_path: pathlib.Path
) -> None:
    """All processes report the same, so any of them could have been the one that does."""
    script = HERE / f"{adapter.__name__}_script.py"
    for name in ("plain", "job"):
        (tmp_path / name).mkdir()
    python, environment = adapter(tmp_path / "plain")
    plain = {**os.environ, **environment, "STEP_SECONDS": "0", "OUTPUT": str(tmp_path / "plain" / "end")}
    subprocess.run([python, script], env=plain, check=True)
    undisturbed = Run.read(tmp_path / "plain" / "end")

    environment = adapter(tmp_path / "job")[1]
    job = SessionJob(etcd, tmp_path / "job", python=python, script=script, environment=environment, preload="auto")
    try:
        for name in "ab":
            job.start(name, nnodes="2:3")
        job.wait_for_world(2, "a", "b", timeout=START)
        c = job.start("c", nnodes="2:3")
        job.wait_for_world(3, "a", "b", "c", timeout=START)
        os.kill(job.pids("b")[-1], signal.SIGKILL)
        eventually(lambda: len(job.pids("b")) == 2, START, what=f"b's process is replaced; logs:\n{job.logs}")
        job.wait_for_world(3, "a", "b", "c", timeout=START)
        c.signal(signal.SIGTERM)
        job.wait_for_world(2, "a", "b")
        job.assert_finished(undisturbed, "a", "b")
        assert [len(job.pids(name)) for name in "abc"] == [1, 2, 1], job.logs
    finally:
        job.close()
    for name in "ab":
        facts = Run.read(tmp_path / "job" / f"{name}-0").facts
        assert {report: facts[report] for report in reports} == {
            report: undisturbed.facts[report] for report in reports
        }
    facts = Run.read(tmp_path / "job" / "a-0").facts
    assert facts.get("evaluated", 1) > 0
    assert facts.get("epochs_ended") == undisturbed.facts.get("epochs_ended")
