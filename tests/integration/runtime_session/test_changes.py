"""Processes are lost and join in the midst of a training that continues in place."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest

from tests.integration.runtime_session.conftest import SETTINGS, STEPS, Run
from tests.integration.runtime_session.driver import SCRIPT, Driver
from tests.integration.runtime_session.history import begin, committed, finish, steps_of, wait_for_step, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def test_a_loss_a_join_a_leave_a_return_and_a_silent_process_leave_no_trace(
    driver: Driver, tmp_path: pathlib.Path, undisturbed: Run
) -> None:
    a, b, c, d = begin(driver, "a", "b", "c", later=["d"])
    wait_for_step(driver, tmp_path, a, 10)
    c.kill()
    driver.plan([a, b])
    wait_for_step(driver, tmp_path, a, 20)
    driver.plan([a, b, d], step_grace=0.5)
    wait_for_step(driver, tmp_path, d, 25)
    without_a = driver.plan([b, d], step_grace=0.5)
    wait_until(driver, lambda: a.waiting == without_a, "a waits")
    left = committed(tmp_path, a)
    wait_for_step(driver, tmp_path, b, left + 10)
    driver.plan([d, a, b], step_grace=0.5)
    wait_for_step(driver, tmp_path, a, left + 20)
    b.freeze()  # no connection ends
    driver.plan([d, a], told=[a, d])
    runs = finish(driver, tmp_path, [a, d])
    for run in runs:
        run.assert_same_training(undisturbed)
    assert [run.facts["changes"] for run in runs] == [[2, 3, 3, 2], [3, 2, 3, 2]]
    assert steps_of(tmp_path, d)[0][1] > 20, "the joiner has received the state"
    assert {size for _, step, size in steps_of(tmp_path, b) if left < step <= left + 10} == {2}
    steps = [step for worker in (a, d) for _, step, _ in steps_of(tmp_path, worker)]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))


def test_a_joiner_leaves_an_epoch_that_the_others_have_left(tmp_path: pathlib.Path) -> None:
    """By `break`, after the last step that it knows of. Otherwise it would take its samples from that epoch."""
    when = tmp_path / "when"
    settings = {**SETTINGS, "BREAK_AT": "20", "BREAK_WHEN": str(when)}
    plain = {**os.environ, **settings, "STEP_SECONDS": "0", "OUTPUT": str(tmp_path / "plain")}
    with contextlib.closing(Driver(tmp_path, settings)) as driver:
        a, b, c = begin(driver, "a", "b", later=["c"])
        wait_for_step(driver, tmp_path, a, 20)
        wait_for_step(driver, tmp_path, b, 20)
        driver.plan([a, b, c], step_grace=0.5)
        wait_until(driver, lambda: a.heard == b.heard == driver.round, "a and b have heard of the plan")
        when.touch()
        subprocess.run([sys.executable, SCRIPT], env=plain, check=True)
        for run in finish(driver, tmp_path, [a, b, c]):
            run.assert_same_training(Run.read(tmp_path / "plain"))
    assert steps_of(tmp_path, c)[0][1] == 21


@pytest.mark.parametrize(
    "pause", [0.02, pytest.param(0.0, marks=pytest.mark.nightly), pytest.param(0.1, marks=pytest.mark.nightly)]
)
def test_a_source_lost_in_the_midst_of_sending_leaves_no_mixture(
    tmp_path: pathlib.Path, undisturbed: Run, pause: float
) -> None:
    """The state arrives in the joiner's own tensors."""
    with contextlib.closing(Driver(tmp_path, {**SETTINGS, "BALLAST": "96"})) as driver:
        a, b, c = begin(driver, "a", "b", later=["c"])
        wait_for_step(driver, tmp_path, a, 10)
        number = driver.plan([a, b, c], step_grace=0.5)
        wait_until(driver, lambda: c.formed == number, "c is about to receive the state")
        driver.pump(pause)
        b.kill()
        driver.plan([a, c])
        runs = finish(driver, tmp_path, [a, c])
    for run in runs:
        run.assert_same_training(undisturbed)
        assert run.facts["ballast"] == [float(a.pid)], "those of rank 0, with which all began"


def test_a_plan_that_loses_a_process_before_it_is_formed_is_superseded(
    driver: Driver, tmp_path: pathlib.Path, undisturbed: Run
) -> None:
    a, b, c = begin(driver, "a", "b", "c")
    wait_for_step(driver, tmp_path, a, 5)
    c.freeze()
    round_number = driver.plan([a, b, c])
    wait_until(driver, lambda: min(a.heard, b.heard) == round_number, "a and b follow a plan that c does not")
    driver.plan([a, b], told=[a, b])
    for run in finish(driver, tmp_path, [a, b]):
        run.assert_same_training(undisturbed)
