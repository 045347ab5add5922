"""What a plan costs for each of thousands of worker pods: counted in calls, which no other load changes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from elasticjob_api import ConditionType
from elasticjob_operator.node_state import Node, NodeHealth
from elasticjob_operator.planning import plan
from elasticjob_operator.state import JobState, Pod

from tests.unit.operator.builders import NOW, failed_pod, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.planning.plans import ADMITTED, SETTINGS, published


def calls_of(work: Callable[[], object]) -> int:
    """Of Python functions, those of the interpreter not included."""
    count = 0

    def on_event(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def at_rest(count: int) -> list[Pod]:
    pod = make_pod(0)
    return [
        dataclasses.replace(pod, name=f"digits-worker-{index}", uid=f"pod-{index}", index=index, node=f"n{index // 8}")
        for index in range(count)
    ]


def with_one(pods: list[Pod], pod: Pod) -> list[Pod]:
    return [pod, *pods[1:]]


CASES: dict[str, Callable[[list[Pod]], tuple[list[Pod], int]]] = {
    "at rest": lambda pods: (pods, len(pods)),
    "one failed": lambda pods: (with_one(pods, failed_pod(0)), len(pods)),
    "one is gone": lambda pods: (pods[1:], len(pods)),
    "none is there yet": lambda pods: ([], len(pods)),
    "half of them leave": lambda pods: (pods, len(pods) // 2),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_plan_makes_few_calls_for_each_worker_pod(case: str) -> None:
    def calls(count: int) -> int:
        pods, wanted = CASES[case](at_rest(count))
        job = make_job(
            replicas=wanted,
            min=1,
            max=count,
            status=make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, world_size=count),
        )
        nodes = {
            name: Node(name=name, health=NodeHealth.READY, since=NOW, seen_at=NOW)
            for name in {pod.node for pod in pods if pod.node}
        }
        view = make_view(plan=make_plan(size=count), spec=published(job))
        state = JobState(pods=tuple(pods), nodes=nodes, rendezvous=view, admission=ADMITTED)
        return calls_of(lambda: plan(job, state, SETTINGS, NOW))

    assert (calls(400) - calls(200)) / 200 <= 25
