"""A training that reads streams, through changes of the world: bit by bit the one that reads the same samples from a
data set with a length."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator

import pytest

from tests.integration.runtime_session.conftest import SETTINGS, STEPS, Run
from tests.integration.runtime_session.driver import SCRIPT, Driver
from tests.integration.runtime_session.history import begin, finish, steps_of, wait_for_step
from tests.integration.runtime_session.test_launchers import run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.fixture
def driver(tmp_path: pathlib.Path) -> Iterator[Driver]:
    with contextlib.closing(Driver(tmp_path, {**SETTINGS, "STREAMS": SETTINGS["BATCH"]})) as driver:
        yield driver


@pytest.mark.parametrize("loaders", [pytest.param("0", marks=pytest.mark.nightly), "2"])
def test_every_sample_is_trained_on_once_through_losses_joins_and_leaves(
    driver: Driver, tmp_path: pathlib.Path, undisturbed: Run, loaders: str
) -> None:
    driver.environment["LOADERS"] = loaders
    a, b, c, d, e = begin(driver, "a", "b", "c", later=["d", "e"])
    wait_for_step(driver, tmp_path, a, 5)
    b.kill()
    driver.plan([a, c])
    wait_for_step(driver, tmp_path, a, 12)
    driver.plan([d, a, c, e], step_grace=0.5)  # all streams move but those of one rank
    wait_for_step(driver, tmp_path, a, 20)
    c.freeze()
    driver.plan([a, e, d], told=[a, d, e])
    wait_for_step(driver, tmp_path, a, 70)  # in the second epoch
    driver.plan([e, a], step_grace=0.5)
    for finished in finish(driver, tmp_path, [a, e]):
        finished.assert_same_training(undisturbed)
    steps = [step for _, step, _ in steps_of(tmp_path, a)]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))


@pytest.mark.parametrize(
    "launcher", [pytest.param("torch.distributed.run", marks=pytest.mark.nightly), "elasticjob_runtime"]
)
def test_the_same_script_runs_without_an_agent_that_continues_in_place(
    launcher: str, tmp_path: pathlib.Path, undisturbed: Run
) -> None:
    """One process of plain python stops after an epoch, and others go on in the midst of it."""
    saved = {"CHECKPOINTS": str(tmp_path / "checkpoints"), "EVERY": "20", "STREAMS": SETTINGS["BATCH"]}
    command = [sys.executable, "-m", launcher, "--standalone", "--nproc-per-node=2"]
    run([sys.executable, os.fspath(SCRIPT)], OUTPUT=str(tmp_path / "first"), EPOCHS="1", **saved)
    run([*command, os.fspath(SCRIPT)], OUTPUT=str(tmp_path / "second"), **saved)
    Run.read(tmp_path / "second").assert_same_training(undisturbed)
    first = int((tmp_path / "second.steps").read_text().split()[1])
    assert first == 61, "of 63 in the first epoch; saved at 60"
