from __future__ import annotations

from collections.abc import Mapping

import pytest
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.policies.scaling import scale
from elasticjob_operator.state import PodPhase
from elasticjob_runtime.contract import ReplicaValue

from tests.unit.operator.builders import failed_pod, make_pod, with_status
from tests.unit.operator.tables import table

LIVE, TERMINATING, UNREACHABLE, LOST, FAILED, ENDED = (
    PodState.LIVE,
    PodState.TERMINATING,
    PodState.UNREACHABLE,
    PodState.LOST,
    PodState.FAILED,
    PodState.SUCCEEDED,
)
PENDING = "pending"


def run(*indices: int) -> dict[int, PodState | str]:
    return dict.fromkeys(indices, LIVE)


@table(
    "wanted, there, create, surplus",
    {
        "new job": (3, {}, [0, 1, 2], []),
        "nothing to do": (3, run(0, 1, 2), [], []),
        "grows into the lowest free indices": (4, run(0, 2), [1, 3], []),
        "shrinks from the highest index": (2, run(0, 1, 2, 3), [], [3, 2]),
        "indices need not be dense": (1, run(2, 5), [], [5]),
        "shrinks by the failed one first": (2, {**run(1, 2), 0: FAILED}, [], [0]),
        "shrinks by the unreachable one first": (2, {**run(1, 2), 0: UNREACHABLE}, [], [0]),
        "shrinks by what does not run yet first": (2, {**run(1, 2), 0: PENDING}, [], [0]),
        "shrinking: the one on its way is enough": (2, {**run(0, 1), 2: TERMINATING}, [], []),
        "4 -> 2 -> 4: at once": (4, {**run(0, 1), 2: TERMINATING, 3: TERMINATING}, [2, 3], []),
        "deleted by hand: replaced at once": (3, {**run(0, 1), 2: TERMINATING}, [2], []),
        "lost: replaced at once": (3, {**run(0, 1), 2: LOST}, [2], []),
        "deleted on a silent node: it may be training": (3, {**run(0, 1), 2: UNREACHABLE}, [], []),
        "a failed pod holds its index until it is deleted": (3, {**run(0, 1), 2: FAILED}, [], []),
        "an ended one is no reason for another": (2, {0: ENDED, 1: LIVE}, [], []),
    },
)
def test_which_pods_are_removed_or_created(
    wanted: int, there: Mapping[int, PodState | str], create: list[int], surplus: list[int]
) -> None:
    pods = [
        with_status(
            failed_pod(index)
            if state is FAILED
            else make_pod(index, PodPhase.PENDING if state == PENDING else PodPhase.RUNNING),
            state if isinstance(state, PodState) else LIVE,
        )
        for index, state in there.items()
    ]
    found = scale(wanted, pods)
    assert (list(found.create), [pod.index for pod in found.surplus], found.twins) == (create, surplus, ())


@table(
    "wanted, there, create, surplus",
    {
        "shrinks from the highest index": (4, run(0, 1, 2, 3, 4, 5), [], [5, 4]),
        "by the replica of the unreachable one": (2, {**run(1, 2, 3), 0: UNREACHABLE}, [], [0, 1]),
        "by the replica that lacks one": (2, {**run(0, 1, 2), 3: TERMINATING}, [], [2]),
        "grows into the gaps": (4, {**run(1, 3)}, [0, 2], []),
    },
)
def test_pods_of_one_replica_leave_together(
    wanted: int, there: Mapping[int, PodState | str], create: list[int], surplus: list[int]
) -> None:
    pods = [with_status(make_pod(index), state) for index, state in there.items() if isinstance(state, PodState)]
    found = scale(wanted, pods, unit=2)
    assert (list(found.create), [pod.index for pod in found.surplus]) == (create, surplus)


@table(
    "wanted, there, replicas, surplus",
    {
        "as the agents have put them together": (2, run(0, 1, 2, 3), ["03", "12"], [2, 1]),
        "one that belongs to none first": (4, run(0, 1, 2, 3, 4), ["03", "14"], [2]),
        "then a whole replica": (2, run(0, 1, 2, 3, 4), ["03", "14"], [2, 4, 1]),
        "one without its other": (4, {**run(0, 1, 2, 3), 4: TERMINATING, 5: LIVE}, ["04", "12", "35"], [0]),
        "the replica of the unreachable one": (2, {**run(1, 2, 3), 0: UNREACHABLE}, ["03", "12"], [0, 3]),
        "not known: neighbours": (4, run(0, 1, 2, 3, 4, 5), [], [5, 4]),
        "those that still start": (2, run(0, 1, 2, 3), ["12"], [3, 0]),
    },
)
def test_the_replicas_that_agents_made_leave_as_a_whole(
    wanted: int, there: Mapping[int, PodState], replicas: list[str], surplus: list[int]
) -> None:
    pods = [with_status(make_pod(index), state) for index, state in there.items()]
    values = [ReplicaValue(index=number, world=1, incarnation="i") for number in range(len(replicas))]
    replica_of = {int(index): values[number] for number, members in enumerate(replicas) for index in members}
    known = {pod.name: replica_of[pod.index] for pod, _ in pods if pod.index in replica_of}
    assert [pod.index for pod in scale(wanted, pods, unit=2, replicas=known).surplus] == surplus


def test_the_store_of_c10d_is_replaced_rather_than_given_up() -> None:
    """Worker pod 0 hosts it: a job that shrinks while that pod ends keeps the index."""
    pods = [with_status(make_pod(0), TERMINATING), *(with_status(make_pod(index), LIVE) for index in (1, 2))]
    found = scale(2, pods, keep=frozenset({0}))
    assert (found.create, [pod.index for pod in found.surplus]) == ((0,), [2])


@table(
    "first, second, goes",
    {
        "both run: the younger": (make_pod(created=-9), make_pod(created=-8, incarnation=1), 1),
        "the one that does not run": pytest.param(
            make_pod(phase=PodPhase.PENDING, created=-9), make_pod(created=-8, incarnation=1), 0
        ),
        "none runs: the younger": (
            make_pod(phase=PodPhase.PENDING, created=-8),
            make_pod(phase=PodPhase.PENDING, created=-9, incarnation=1),
            0,
        ),
    },
)
def test_of_two_pods_of_one_index_one_stays(first: object, second: object, goes: int) -> None:
    pods = [with_status(make_pod(1), LIVE), with_status(first, LIVE), with_status(second, LIVE)]  # type: ignore[arg-type]
    found = scale(2, pods)
    assert [pod.uid for pod in found.twins] == [f"pod-0-{goes}"]
    assert (found.create, found.surplus) == ((), ())


def test_the_replacement_of_a_pod_whose_node_then_fell_silent_stays() -> None:
    pods = [with_status(make_pod(), UNREACHABLE), with_status(make_pod(incarnation=1, created=-1), LIVE)]
    assert [pod.uid for pod in scale(1, pods).twins] == ["pod-0-0"]
