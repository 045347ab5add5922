"""The same script under plain python, torchrun, and elasticrun as it restarts workers; and from a checkpoint."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.integration.runtime_session.conftest import SETTINGS, STEPS, Run
from tests.integration.runtime_session.driver import SCRIPT, Driver
from tests.integration.runtime_session.history import begin, finish, wait_for_step

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

FAST = {**SETTINGS, "STEP_SECONDS": "0", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, **FAST, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("launcher", ["torch.distributed.run", "elasticjob_runtime"])
def test_the_same_script_runs_without_an_agent_that_continues_in_place(
    launcher: str, tmp_path: pathlib.Path, undisturbed: Run
) -> None:
    script = [os.fspath(SCRIPT)]
    run(
        [sys.executable, "-m", launcher, "--standalone", "--nproc-per-node=2", *script],
        OUTPUT=str(tmp_path / "output"),
    )
    Run.read(tmp_path / "output").assert_same_training(undisturbed)


def test_a_checkpoint_of_one_process_serves_all(driver: Driver, tmp_path: pathlib.Path, undisturbed: Run) -> None:
    """Local disks: only the process of rank 1 has one."""
    local = str(tmp_path / "b" / "checkpoints")
    run([sys.executable, os.fspath(SCRIPT)], OUTPUT=str(tmp_path / "one"), CHECKPOINTS=local, EPOCHS="1", EVERY="5")
    driver.environment["CHECKPOINTS"] = str(tmp_path / "{name}" / "checkpoints")
    workers = begin(driver, "a", "b")
    for item in finish(driver, tmp_path, workers):
        item.assert_same_training(undisturbed)
    for name in ("a", "b"):
        assert int((tmp_path / f"{name}.steps").read_text().split()[1]) == 61  # of 63 in the first epoch; saved at 60


@pytest.mark.nightly
def test_data_loader_processes_survive_a_change(driver: Driver, tmp_path: pathlib.Path, undisturbed: Run) -> None:
    driver.environment["LOADERS"] = "1"
    a, b, c = begin(driver, "a", "b", "c")
    wait_for_step(driver, tmp_path, a, 10)
    before = _children(a.pid)
    assert len(before) == 1
    c.kill()
    driver.plan([a, b])
    wait_for_step(driver, tmp_path, a, 20)
    assert _children(a.pid) == before
    for item in finish(driver, tmp_path, [a, b]):
        item.assert_same_training(undisturbed)
        assert item.facts["committed"] == STEPS


def _children(pid: int) -> list[str]:
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
