from __future__ import annotations

from elasticjob_api import CleanPods
from elasticjob_operator.policies.cleanup import clean_up
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.state import Pod

from tests.unit.operator.builders import NOW, at, ended, failed_pod, make_pod
from tests.unit.operator.tables import table

RUNNING, ALL, NONE = CleanPods.RUNNING, CleanPods.ALL, CleanPods.NONE
LIVE = (make_pod(0), PodState.LIVE)
FAILED = (failed_pod(1), PodState.FAILED)
TERMINATING = (make_pod(2, deletion_timestamp=5), PodState.TERMINATING)
LOST = (make_pod(3), PodState.LOST)
SIDECAR = (make_pod(4, end=ended(0)), PodState.SUCCEEDED)
"""Its trainer has ended, another container runs on."""


@table(
    "policy, pods, after, deleted, rest, again",
    {
        "no pods": (RUNNING, [], 0, [], True, None),
        "agents exit by themselves: wait": (RUNNING, [LIVE, FAILED], 0, [], False, 10),
        "running pods are deleted, ended ones stay": (RUNNING, [LIVE, FAILED], 10, [0], False, None),
        "all ended": (RUNNING, [FAILED], 0, [], True, None),
        "all: at once if none runs": (ALL, [FAILED], 0, [1], True, None),
        "all: after the grace period": (ALL, [LIVE, FAILED], 0, [], False, 10),
        "all": (ALL, [LIVE, FAILED], 10, [0, 1], False, None),
        "none, so etcd stays too": (NONE, [LIVE, FAILED], 99, [], False, None),
        "a sidecar may end by itself": (RUNNING, [SIDECAR], 0, [], True, 10),
        "a sidecar is deleted after the grace period": (RUNNING, [SIDECAR], 10, [4], True, None),
        "a sidecar is kept by policy None": (NONE, [SIDECAR], 10, [], True, None),
        "terminating": (RUNNING, [TERMINATING], 99, [], False, None),
    },
)
def test_pods_are_deleted_by_the_cleanup_policy(
    policy: CleanPods,
    pods: list[tuple[Pod, PodState]],
    after: float,
    deleted: list[int],
    rest: bool,
    again: float | None,
) -> None:
    found = clean_up(policy, pods, NOW, at(after))
    assert [pod.index for pod in found.delete] == deleted
    assert found.all_ended is rest
    assert found.requeue_at == (at(again) if again is not None else None)


def test_the_etcd_of_a_job_stays_until_its_lost_pods_are_gone() -> None:
    assert not clean_up(RUNNING, [LOST], NOW, NOW).all_ended


def test_running_pods_of_a_failed_job_are_deleted_whatever_the_policy() -> None:
    found = clean_up(NONE, [LIVE, FAILED], NOW, at(10), job_failed=True)
    assert [pod.index for pod in found.delete] == [0]
