"""Processes are lost and join in the midst of a training that continues in place."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.integration.runtime_session.conftest import SETTINGS, STEPS, Run
from tests.integration.runtime_session.driver import SCRIPT, Driver
from tests.integration.runtime_session.history import begin, finish, steps_of, wait_for_step, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def test_survivors_of_a_killed_process_train_on_in_the_same_processes(
    driver: Driver, tmp_path: pathlib.Path, undisturbed: Run
) -> None:
    a, b, c = begin(driver, "a", "b", "c")
    wait_for_step(driver, tmp_path, a, 10)
    c.kill()
    driver.plan([a, b])
    runs = finish(driver, tmp_path, [a, b])
    for run in runs:
        run.assert_same_training(undisturbed)
        assert run.facts["changes"] == [2]
    steps = [step for _, step, _ in steps_of(tmp_path, a)]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))


def test_a_joiner_receives_the_state_and_all_train_on(driver: Driver, tmp_path: pathlib.Path, undisturbed: Run) -> None:
    a, b, c = begin(driver, "a", "b", later=["c"])
    wait_for_step(driver, tmp_path, a, 10)
    driver.plan([a, b, c], step_grace=0.5)
    for run in finish(driver, tmp_path, [a, b, c]):
        run.assert_same_training(undisturbed)
    assert steps_of(tmp_path, c)[0][1] > 10
    assert {size for _, step, size in steps_of(tmp_path, c)} == {3}


def test_a_joiner_leaves_an_epoch_that_the_others_have_left(tmp_path: pathlib.Path) -> None:
    """By `break`, after the last step that it knows of. Otherwise it would take its samples from that epoch."""
    when = tmp_path / "when"
    settings = {**SETTINGS, "BREAK_AT": "20", "BREAK_WHEN": str(when)}
    plain = {**os.environ, **settings, "STEP_SECONDS": "0", "OUTPUT": str(tmp_path / "plain")}
    driver = Driver(tmp_path, settings)
    try:
        a, b, c = begin(driver, "a", "b", later=["c"])
        wait_for_step(driver, tmp_path, a, 20)
        wait_for_step(driver, tmp_path, b, 20)
        driver.plan([a, b, c], step_grace=0.5)
        wait_until(driver, lambda: a.heard == b.heard == driver.round, "a and b have heard of the plan")
        when.touch()
        subprocess.run([sys.executable, SCRIPT], env=plain, check=True, timeout=200)
        for run in finish(driver, tmp_path, [a, b, c]):
            run.assert_same_training(Run.read(tmp_path / "plain"))
    finally:
        driver.close()
    assert steps_of(tmp_path, c)[0][1] == 21


@pytest.mark.parametrize(
    "pause", [0.02, pytest.param(0.0, marks=pytest.mark.nightly), pytest.param(0.1, marks=pytest.mark.nightly)]
)
def test_a_source_lost_in_the_midst_of_sending_leaves_no_mixture(
    tmp_path: pathlib.Path, undisturbed: Run, pause: float
) -> None:
    """The state arrives in the joiner's own tensors."""
    driver = Driver(tmp_path, {**SETTINGS, "BALLAST": "96"})
    try:
        a, b, c = begin(driver, "a", "b", later=["c"])
        wait_for_step(driver, tmp_path, a, 10)
        number = driver.plan([a, b, c], step_grace=0.5)
        wait_until(driver, lambda: c.formed == number, "c is about to receive the state")
        driver.pump(pause)
        b.kill()
        driver.plan([a, c])
        runs = finish(driver, tmp_path, [a, c])
    finally:
        driver.close()
    for run in runs:
        run.assert_same_training(undisturbed)
        assert run.facts["ballast"] == [float(a.pid)], "those of rank 0, with which all began"


def test_a_silent_process_is_left_behind(driver: Driver, tmp_path: pathlib.Path, undisturbed: Run) -> None:
    a, b, c, d = begin(driver, "a", "b", "c", "d")
    wait_for_step(driver, tmp_path, a, 10)
    b.freeze()  # no connection ends
    driver.plan([d, a, c], told=[a, c, d])  # rank 0 changes hands, too
    for run in finish(driver, tmp_path, [a, c, d]):
        run.assert_same_training(undisturbed)


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


def test_a_process_outside_the_plan_waits_and_may_return(
    driver: Driver, tmp_path: pathlib.Path, undisturbed: Run
) -> None:
    a, b, c = begin(driver, "a", "b", "c")
    wait_for_step(driver, tmp_path, a, 10)
    without_a = driver.plan([b, c], step_grace=0.5)
    wait_for_step(driver, tmp_path, b, 20)
    wait_until(driver, lambda: a.waiting == without_a, "a waits")
    driver.plan([a, c, b], step_grace=0.5)
    for run in finish(driver, tmp_path, [a, b, c]):
        run.assert_same_training(undisturbed)
    assert {size for _, step, size in steps_of(tmp_path, b) if 15 < step <= 20} == {2}
