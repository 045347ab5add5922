from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import Status
from elasticjob_operator.policies.scale_up_delay import delay_scale_up

from tests.unit.operator.builders import NOW, at, make_job


@pytest.mark.parametrize(
    ("wish", "aimed_at", "scale_up", "delay", "after", "expected"),
    [
        pytest.param(4, None, None, 10, 0, (4, None), id="new: at once"),
        pytest.param(4, 4, None, 10, 0, (4, None), id="as wanted"),
        pytest.param(6, 4, None, 0, 0, (6, None), id="no delay"),
        pytest.param(6, 4, None, 10, 0, (4, 10), id="more: later"),
        pytest.param(6, 4, 10, 10, 9, (4, 10), id="still waiting, the operator was restarted meanwhile"),
        pytest.param(6, 4, 10, 10, 10, (6, None), id="now"),
        pytest.param(8, 4, 10, 10, 9, (4, 10), id="spot loops: a further wish joins the first, and puts nothing off"),
        pytest.param(3, 4, 10, 10, 5, (3, None), id="fewer: at once"),
        pytest.param(4, 4, 10, 10, 5, (4, None), id="withdrawn"),
    ],
)
def test_a_scale_up_happens_after_the_delay(
    wish: int,
    aimed_at: int | None,
    scale_up: float | None,
    delay: int,
    after: float,
    expected: tuple[int, float | None],
) -> None:
    status = Status(
        desired_replicas=aimed_at, scale_up_time=at(scale_up) if scale_up is not None else None, start_time=NOW
    )
    found = delay_scale_up(
        make_job(replicas=wish, spec={"scaling": {"scaleUpDelaySeconds": delay}}, status=status), at(after)
    )
    replicas, again = expected
    assert (found.replicas, found.scale_up_at, found.requested) == (
        replicas,
        at(again) if again is not None else None,
        wish,
    )


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({"spec": {"suspend": True, "scaling": {"scaleUpDelaySeconds": 10}}}, id="suspended"),
        pytest.param(
            {"min": 5, "spec": {"scaling": {"scaleUpDelaySeconds": 10}}}, id="what was aimed at is no longer enough"
        ),
    ],
)
def test_what_is_not_delayed(job: dict[str, Any]) -> None:
    status = Status(desired_replicas=4, start_time=NOW)
    found = delay_scale_up(make_job(replicas=5, status=status, **job), NOW)
    assert (found.replicas, found.scale_up_at) == (5, None)
