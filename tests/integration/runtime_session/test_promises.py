"""What people train with goes through a kill and a planned change, and ends with every bit of an undisturbed run."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.runtime_session import promises
from tests.integration.runtime_session.driver import Driver
from tests.integration.runtime_session.history import begin, finish, steps_of, wait_for_step

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

NIGHTLY = {"scheduler", "averaged", "frozen", "static", "no_backend", "compiled"}
"""Kinds that differ little from another one, or compile, which takes a minute."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly if kind in NIGHTLY else ()) for kind in promises.KINDS]
)
def test_a_kill_and_a_planned_change_leave_no_trace_in_the_training(kind: str, tmp_path: pathlib.Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    with training(undisturbed, kind) as driver:
        expected = finish(driver, undisturbed, begin(driver, "a", "b"))
    changed = tmp_path / "changed"
    with training(changed, kind) as driver:
        a, b, c, d = begin(driver, "a", "b", later=["c", "d"])
        wait_for_step(driver, changed, a, 10)
        b.kill()
        driver.plan([a, c])
        wait_for_step(driver, changed, c, 20)
        driver.plan([a, d], step_grace=0.5)
        for run, same in zip(finish(driver, changed, [a, d]), expected, strict=True):
            run.assert_same_training(same)
        assert steps_of(changed, d)


@contextlib.contextmanager
def training(folder: pathlib.Path, kind: str) -> Iterator[Driver]:
    folder.mkdir()
    with contextlib.closing(
        Driver(folder, {"KIND": kind, "STEP_SECONDS": "0.005"}, pathlib.Path(promises.__file__))
    ) as driver:
        yield driver
