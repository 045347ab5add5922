"""Random kills, freezes, joins, leaves and superseded plans: every sample of every epoch exactly once, and the weights
of an undisturbed run."""

from __future__ import annotations

import pathlib
import random

import pytest

from tests.integration.runtime_session import random_run
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.driver import Driver, Worker
from tests.integration.runtime_session.history import begin, finish

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(300)]

EVENTS = 12
LARGEST_WORLD = 5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_history_of_changes_is_the_same_training(
    driver: Driver, tmp_path: pathlib.Path, undisturbed: Run, seed: int
) -> None:
    choose = random.Random(seed)
    spares = [f"spare-{number}" for number in range(4)]
    *inside, s1, s2, s3, s4 = begin(driver, "a", "b", "c", later=spares)
    outside = [s1, s2, s3, s4]
    history: list[str] = []
    for _ in range(EVENTS):
        driver.pump(choose.choice([0.0, 0.02, 0.2, 0.5]))
        driver.check()
        if any(each.process.poll() == 0 for each in inside):
            break  # the training is over
        event = choose.choice(["kill", "freeze", "join", "join", "leave", "again"])
        step_grace = 0.0
        lost: Worker | None = None
        if event == "join" and outside and len(inside) < LARGEST_WORLD:
            inside.append(outside.pop())
            step_grace = choose.choice([0.0, 0.3])
        elif event in ("kill", "freeze", "leave"):
            others = [each for each in inside if _may_be_lost(each, inside)]
            lost = choose.choice(others) if others else None
            if lost is not None:
                inside.remove(lost)
                if event == "kill":
                    lost.kill()
                elif event == "freeze":
                    lost.freeze()
                else:
                    outside.insert(0, lost)  # it waits, and may return
        told = [each for each in driver.workers.values() if each is not lost or event == "leave"]
        driver.plan(inside, step_grace=step_grace, told=told)
        history.append(f"{event} {lost.name if lost else ''}: {' '.join(each.name for each in inside)}")
    print(f"seed {seed}:", *history, sep="\n  ")
    for run in finish(driver, tmp_path, inside):
        run.assert_same_training(undisturbed)
        assert set(run.state["model"]["seen"][:992].unique().tolist()) <= {-2.0, -3.0, -4.0}


def _may_be_lost(worker: Worker, inside: list[Worker]) -> bool:
    """One that has the state remains."""
    return any(other.entered for other in inside if other is not worker)


def test_random_faults_under_real_agents_leave_no_trace(tmp_path: pathlib.Path) -> None:
    random_run.run(tmp_path, seconds=12, every=3, chance=random.Random(4))
