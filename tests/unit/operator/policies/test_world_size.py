from __future__ import annotations

import dataclasses

from elasticjob_api import ConditionType
from elasticjob_operator.planning import plan as plan_job
from elasticjob_operator.policies.rendezvous import with_world_size
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState
from elasticjob_runtime.contract import PlanValue

from tests.unit.operator.builders import NOW, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.tables import table

OF_ELASTICRUN = dataclasses.replace(make_plan(3), nproc=2, world_size=8)
OF_TORCHRUN = dataclasses.replace(make_plan(3), nproc=0, world_size=0)


@table(
    "plan, procs, expected",
    {
        "counted": (OF_ELASTICRUN, "auto", 8),
        "counted otherwise": (OF_ELASTICRUN, 3, 8),
        "given": (OF_TORCHRUN, 2, 8),
        "unknown": (OF_TORCHRUN, "auto", 0),
    },
)
def test_world_size_of_a_plan(plan: PlanValue, procs: int | str, expected: int) -> None:
    found = with_world_size(make_job(workers={"procsPerWorker": procs}), plan)
    assert found is not None
    assert found.world_size == expected


def test_the_world_size_is_unknown_if_procs_per_worker_is_not_a_number() -> None:
    job = make_job(
        workers={"procsPerWorker": 2}, status=make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, round=3)
    )
    pods = tuple(dataclasses.replace(make_pod(index), template_hash=hash_of(job)) for index in range(4))
    world = JobState(pods=pods, nodes={}, rendezvous=make_view(plan=OF_TORCHRUN))
    assert plan_job(job, world, Settings(), NOW).status.world_size == 8
