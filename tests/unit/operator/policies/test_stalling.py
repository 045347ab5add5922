from __future__ import annotations

import pytest
from elasticjob_api import ConditionType, Progress, Reason
from elasticjob_operator.policies.stalling import stalled
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import ProgressValue

from tests.unit.operator.builders import NOW, at, make_job, make_plan, make_status, make_view


@pytest.mark.parametrize(
    ("seen", "speed", "round_number", "connectivity", "running", "expected"),
    [
        pytest.param(-59, 1.0, 2, Connectivity.REACHABLE, True, False, id="a step a minute ago"),
        pytest.param(-60, 1.0, 2, Connectivity.REACHABLE, True, True, id="none for a minute"),
        pytest.param(-60, 0.1, 2, Connectivity.REACHABLE, True, False, id="steps of ten seconds"),
        pytest.param(-300, 0.1, 2, Connectivity.REACHABLE, True, True, id="... for thirty of them"),
        pytest.param(-300, 0.0, 2, Connectivity.REACHABLE, True, True, id="no speed known"),
        pytest.param(-300, 1.0, 2, Connectivity.UNREACHABLE, True, None, id="etcd is unreachable: unknown"),
        pytest.param(-300, 1.0, 1, Connectivity.REACHABLE, True, None, id="a new round has not reported yet"),
        pytest.param(-300, 1.0, 2, Connectivity.REACHABLE, False, None, id="does not run"),
        pytest.param(None, 1.0, 2, Connectivity.REACHABLE, True, None, id="never reported a step"),
    ],
)
def test_when_training_has_stalled(
    seen: float | None,
    speed: float,
    round_number: int,
    connectivity: Connectivity,
    running: bool,
    expected: bool | None,
) -> None:
    progress = Progress(step=7, steps_per_second=speed, observed_at=at(seen)) if seen is not None else None
    view = make_view(
        connectivity,
        plan=make_plan(2),
        progress=ProgressValue(step=7, round=round_number) if seen is not None else None,
    )
    found = stalled(make_job(), view, progress, running=running, now=NOW)
    assert (found.status if found else None) is expected
    assert found is None or found.reason is (Reason.NO_PROGRESS if expected else Reason.PROGRESSING)


def test_time_without_etcd_is_not_a_stall() -> None:
    """While it is away nothing can be reported."""
    job = make_job(status=make_status(ConditionType.RENDEZVOUS_READY))
    view = make_view(plan=make_plan(2), progress=ProgressValue(step=7, round=2))
    found = stalled(job, view, Progress(step=7, observed_at=at(-600)), running=True, now=at(59))
    assert found is not None
    assert (found.status, found.requeue_at) == (False, at(60))


def test_a_script_that_reports_a_percentage_but_no_steps_does_not_stall() -> None:
    view = make_view(plan=make_plan(2), progress=ProgressValue(step=0, percent=7, round=2))
    progress = Progress(step=0, percent=7, observed_at=at(-600))
    assert stalled(make_job(), view, progress, running=True, now=NOW) is None


def test_a_restart_ends_a_stall() -> None:
    job = make_job(status=make_status(ConditionType.STALLED))
    found = stalled(job, make_view(), None, running=False, now=NOW)
    assert found is not None
    assert not found.status
