from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import FailingNode, Reason, Status
from elasticjob_operator.node_state import NodeHealth
from elasticjob_operator.policies.node_avoidance import avoided, failing_nodes, suspected
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.state import Pod, PodPhase

from tests.unit.operator.builders import NOW, at, ended, failed_pod, make_job, make_node, make_pod, with_status
from tests.unit.operator.tables import table

FAILED, LOST, LIVE = PodState.FAILED, PodState.LOST, PodState.LIVE
NODES = {"a": make_node("a"), "dead": make_node("dead", NodeHealth.SILENT, since=-6)}
INIT_FAILED = dataclasses.replace(
    make_pod(0, PodPhase.FAILED, node="b"), init_end=dataclasses.replace(ended(1), container="download")
)
REFUSED = make_pod(0, PodPhase.FAILED, reason="OutOfcpu", node="a", created=0)


CHECK = "its machine fails a check"


def known(name: str, failures: int, seconds: float, check: str | None = None) -> FailingNode:
    return FailingNode(name=name, failures=failures, last_time=at(seconds), check=check)


@table(
    "before, pod, state, counted, expected",
    {
        "no failure": ((), make_pod(0, node="a"), LIVE, "", ()),
        "a worker failed": ((), failed_pod(0, node="a"), FAILED, "digits-worker-0", (known("a", 1, 0),)),
        "failed after the first of its group: not counted": ((), failed_pod(0, node="a"), FAILED, "", ()),
        "exited gracefully: not counted": ((), failed_pod(0, node="a", code=143), FAILED, "", ()),
        "preempted: not counted": ((), failed_pod(0, node="a", disruption="PreemptionByScheduler"), FAILED, "", ()),
        "etcd was unreachable: not counted": ((), failed_pod(0, node="a", code=69), FAILED, "", ()),
        "avoided at once": ((), failed_pod(0, node="a", code=76), FAILED, "", (known("a", 3, 0),)),
        "its node is suspect": ((), failed_pod(0, node="a", code=79), FAILED, "", (known("a", 3, 0, CHECK),)),
        "rejected by the kubelet": ((), REFUSED, FAILED, "", (known("a", 1, 0),)),
        "seen before": ((known("a", 1, 0),), REFUSED, FAILED, "", (known("a", 1, 0),)),
        "the node was lost": ((), make_pod(0, node="dead"), LOST, "", (known("dead", 1, -6),)),
        "with several workers: once": pytest.param(
            (known("dead", 1, -6),), make_pod(1, node="dead"), LOST, "", (known("dead", 1, -6),)
        ),
        "lost again": ((known("dead", 2, -99),), make_pod(1, node="dead"), LOST, "", (known("dead", 3, -6),)),
        "long ago: expired": ((known("b", 9, -3600),), make_pod(0, node="a"), LIVE, "", ()),
        "not yet expired": ((known("b", 9, -3599),), make_pod(0, node="a"), LIVE, "", (known("b", 9, -3599),)),
    },
)
def test_failures_are_counted_by_node(
    before: tuple[FailingNode, ...], pod: Pod, state: PodState, counted: str, expected: tuple[FailingNode, ...]
) -> None:
    job = make_job(status=Status(failing_nodes=before))
    assert failing_nodes(job, [with_status(pod, state)], NODES, counted, NOW) == expected


@table(
    "others, blamed",
    {
        "the only worker pod": ([], False),
        "it fails everywhere": ([INIT_FAILED], False),
        "another has not got past it yet": ([make_pod(1, PodPhase.PENDING, node="b")], False),
        "another got past it on the same node": ([make_pod(1, node="a")], False),
        "another got past it elsewhere": ([make_pod(1, node="b")], True),
    },
)
def test_a_node_is_blamed_for_an_init_container_only_if_it_ends_well_elsewhere(others: list[Pod], blamed: bool) -> None:
    pods = [dataclasses.replace(INIT_FAILED, node="a"), *others]
    states = [with_status(pod, FAILED if pod.failed else LIVE) for pod in pods]
    expected = (known("a", 1, 0),) if blamed else ()
    assert failing_nodes(make_job(), states, NODES, "digits-worker-0", NOW) == expected


def test_nodes_that_fail_a_check_are_named_with_what_it_found() -> None:
    end = ended(79, message="the preflight checks of this machine fail: compute: 3 s, median of the others 0.9 s")
    pod = make_pod(0, PodPhase.FAILED, node="a", end=end)
    found = failing_nodes(make_job(), [with_status(pod, FAILED)], NODES, "", NOW)
    assert [(item.name, item.check) for item in found] == [("a", "compute: 3 s, median of the others 0.9 s")]
    condition = suspected([known("b", 3, 0), *found])
    assert (condition.status, condition.reason) == (True, Reason.CHECK_FAILED)
    assert "a (compute: 3 s, median of the others 0.9 s)." in condition.message
    assert "kubectl cordon a" in condition.message
    many = suspected([known(f"n{index}", 1, 0, "c") for index in range(10)])
    assert many.message.count("(c)") == 8
    assert "; and 2 more" in many.message
    assert (suspected([known("b", 3, 0)]).status, suspected([]).reason) == (False, Reason.NO_SUSPECTS)


@pytest.mark.parametrize(("limit", "expected"), [(3, ["b"]), (1, ["a", "b"]), (0, [])])
def test_nodes_that_failed_often_enough_are_avoided(limit: int, expected: list[str]) -> None:
    spec: dict[str, Any] = {"scheduling": {"avoidNodesAfter": limit}}
    assert avoided(make_job(spec=spec), [known("a", 2, 0), known("b", 3, 0)]) == expected
