from __future__ import annotations

from typing import Any

from elasticjob_api import Status
from elasticjob_operator.policies.scale_up_delay import delay_scale_up

from tests.unit.operator.builders import NOW, at, make_job
from tests.unit.operator.tables import table


@table(
    "wish, aimed_at, scale_up, delay, after, expected",
    {
        "new: at once": (4, None, None, 10, 0, (4, None)),
        "as wanted": (4, 4, None, 10, 0, (4, None)),
        "no delay": (6, 4, None, 0, 0, (6, None)),
        "more: later": (6, 4, None, 10, 0, (4, 10)),
        "still waiting, the operator was restarted meanwhile": (6, 4, 10, 10, 9, (4, 10)),
        "now": (6, 4, 10, 10, 10, (6, None)),
        "spot loops: a further wish joins the first, and puts nothing off": (8, 4, 10, 10, 9, (4, 10)),
        "fewer: at once": (3, 4, 10, 10, 5, (3, None)),
        "withdrawn": (4, 4, 10, 10, 5, (4, None)),
    },
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


@table(
    "job",
    {
        "suspended": {"spec": {"suspend": True, "scaling": {"scaleUpDelaySeconds": 10}}},
        "what was aimed at is no longer enough": {"min": 5, "spec": {"scaling": {"scaleUpDelaySeconds": 10}}},
    },
)
def test_what_is_not_delayed(job: dict[str, Any]) -> None:
    status = Status(desired_replicas=4, start_time=NOW)
    found = delay_scale_up(make_job(replicas=5, status=status, **job), NOW)
    assert (found.replicas, found.scale_up_at) == (5, None)
