"""When the worker pod of a slow rank is replaced."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from elasticjob_api import ElasticJob, FailingNode, Status
from elasticjob_operator.policies import stragglers
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.state import Pod, PodPhase, RendezvousView
from elasticjob_runtime.contract import Straggler, StragglersValue

from tests.unit.operator.builders import NOW, at, make_job, make_plan, make_pod, with_status

LIVE = PodState.LIVE
THROTTLED = "its CPU limit slows it down"
NAMES = [make_pod(index).name for index in range(3)]


def job(*failing: FailingNode, stragglers: str = "Replace", least: int = 2, avoid: int = 3) -> ElasticJob:
    return make_job(
        replicas=3,
        min=least,
        spec={"failurePolicy": {"stragglers": stragglers}, "scheduling": {"avoidNodesAfter": avoid}},
        status=Status(failing_nodes=failing or None),
    )


def view(*slow: Straggler, round_number: int = 4) -> RendezvousView:
    plan = make_plan(4, size=3)
    return RendezvousView(plan=plan, stragglers=StragglersValue(round=round_number, stragglers=list(slow)))


def straggler(rank: int, *signs: str) -> Straggler:
    return Straggler(rank=rank, member=NAMES[rank], text="own time 50 ms", signs=list(signs))


def pods(*nodes: str, states: Sequence[PodState] = (LIVE, LIVE, LIVE)) -> list[tuple[Pod, PodStatus]]:
    made = [make_pod(index, PodPhase.RUNNING, ready=True, node=node) for index, node in enumerate(nodes)]
    return [with_status(pod, state) for pod, state in zip(made, states, strict=False)]


def entry(text: str, seconds: float, node: str = "b") -> FailingNode:
    return FailingNode(name=node, failures=3, last_time=at(seconds), check=text)


SLOW = straggler(1, THROTTLED)
THREE = pods("a", "b", "c")
EARLIER = entry(f"slow: rank 0 in {NAMES[0]}: own time 50 ms", -599, "elsewhere")

REPLACED: dict[str, tuple[ElasticJob, RendezvousView, list[tuple[Pod, PodStatus]], str | None]] = {
    "a second sign: its CPU limit": (job(), view(SLOW), THREE, "b"),
    "a second sign: another rank on its node": (job(), view(straggler(1), straggler(2)), pods("a", "b", "b"), "b"),
    "no second sign": (job(), view(straggler(1)), THREE, None),
    "two ranks on two nodes are no second sign": (job(), view(straggler(1), straggler(2)), THREE, None),
    "the first with a sign": (job(), view(straggler(1), straggler(2, THROTTLED)), THREE, "c"),
    "Report": (job(stragglers="Report"), view(SLOW), THREE, None),
    "of an earlier round": (job(), view(SLOW, round_number=3), THREE, None),
    "a replacement would not avoid the node": (job(avoid=0), view(SLOW), THREE, None),
    "no more than minReplicas": (job(least=3), view(SLOW), THREE, None),
    "one pod is being deleted": (
        job(), view(SLOW), pods("a", "b", "c", states=(LIVE, LIVE, PodState.TERMINATING)), None,
    ),
    "one pod is missing": (job(), view(SLOW), pods("a", "b"), None),
    "another was replaced within ten minutes": (job(EARLIER), view(SLOW), THREE, None),
    "another was replaced ten minutes ago": (
        job(entry(f"slow: rank 0 in {NAMES[0]}: own time 50 ms", -600, "elsewhere")), view(SLOW), THREE, "b",
    ),
    "its node failed another check": (job(entry("compute: 3 s", -60)), view(SLOW), THREE, "b"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "known", "workers", "expected"), REPLACED.values(), ids=REPLACED)
def test_the_worker_pod_of_a_slow_rank_is_replaced_only_with_a_second_sign(
    made: ElasticJob, known: RendezvousView, workers: list[tuple[Pod, PodStatus]], expected: str | None
) -> None:
    slow = stragglers.slow_ranks(known, workers)
    node = stragglers.node_to_avoid(made, known, slow, workers, NOW)
    assert (node.name if node else None) == expected
    assert stragglers.pod_to_replace(made, known, slow, workers, NOW) is None, "not before status has the node"


def test_a_pod_is_deleted_once_status_has_its_node() -> None:
    slow = stragglers.slow_ranks(view(SLOW), THREE)
    node = stragglers.node_to_avoid(job(), view(SLOW), slow, THREE, NOW)
    assert node is not None
    assert node.check == f"slow: rank 1 in {NAMES[1]}: own time 50 ms; {THROTTLED}"
    found = stragglers.pod_to_replace(job(node), view(SLOW), slow, THREE, NOW)
    assert found is not None
    assert found[0].name == NAMES[1]
    assert stragglers.node_to_avoid(job(node), view(SLOW), slow, THREE, NOW) is None
    assert stragglers.replace_again_at(job(node), slow, NOW) == at(600)


def test_a_plan_is_asked_for_again_only_at_a_time_to_come() -> None:
    slow = stragglers.slow_ranks(view(SLOW), THREE)
    assert stragglers.replace_again_at(job(EARLIER), slow, NOW) == at(1)
    assert stragglers.replace_again_at(job(EARLIER), slow, at(1)) is None


def test_another_pod_on_that_node_is_kept_for_ten_minutes() -> None:
    slow = stragglers.slow_ranks(view(SLOW), THREE)
    other = entry(f"slow: rank 1 in {NAMES[1]}-before: own time 50 ms", -60)
    assert stragglers.pod_to_replace(job(other), view(SLOW), slow, THREE, NOW) is None
    assert stragglers.node_to_avoid(job(other), view(SLOW), slow, THREE, NOW) is None


def test_the_condition_names_rank_pod_node_and_reason() -> None:
    update = stragglers.found(job(stragglers="Report"), stragglers.slow_ranks(view(SLOW), THREE))
    assert update.status
    assert f"rank 1 in {NAMES[1]} on node b: own time 50 ms; {THROTTLED}" in update.message
    assert f"kubectl delete pod {NAMES[1]}" in update.message
    assert "avoidNodesAfter: 0" in stragglers.found(job(avoid=0), stragglers.slow_ranks(view(SLOW), THREE)).message
    many = [straggler(1)] * 20
    assert "And 12 more" in stragglers.found(job(), stragglers.slow_ranks(view(*many), THREE)).message
    assert stragglers.found(job(), []).status is False
