from __future__ import annotations

from collections.abc import Mapping

import pytest
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.policies.scaling import scale
from elasticjob_operator.state import PodPhase

from tests.unit.operator.builders import make_pod

LIVE, TERMINATING, LOST, FAILED, ENDED = (
    PodState.LIVE,
    PodState.TERMINATING,
    PodState.LOST,
    PodState.FAILED,
    PodState.SUCCEEDED,
)
PENDING = "pending"


def run(*indices: int) -> dict[int, PodState | str]:
    return dict.fromkeys(indices, LIVE)


@pytest.mark.parametrize(
    ("wanted", "there", "taken", "members", "create", "surplus"),
    [
        pytest.param(3, {}, (), [0, 1, 2], [0, 1, 2], [], id="new job"),
        pytest.param(3, run(0, 1, 2), (), [0, 1, 2], [], [], id="nothing to do"),
        pytest.param(4, run(0, 2), (), [0, 1, 2, 3], [1, 3], [], id="grows into the lowest free indices"),
        pytest.param(2, run(0, 1, 2, 3), (), [0, 1], [], [3, 2], id="shrinks from the highest index"),
        pytest.param(1, run(2, 5), (), [2], [], [5], id="indices need not be dense"),
        pytest.param(2, {**run(1, 2), 0: FAILED}, (), [1, 2], [], [0], id="shrinks by the failed one first"),
        pytest.param(2, {**run(1, 2), 0: LOST}, (), [1, 2], [], [0], id="shrinks by the lost one first"),
        pytest.param(2, {**run(1, 2), 0: PENDING}, (), [1, 2], [], [0], id="shrinks by what does not run yet first"),
        pytest.param(
            2,
            {**run(0, 1), 2: TERMINATING, 3: TERMINATING},
            (),
            [0, 1],
            [],
            [3, 2],
            id="shrinking: the ones on their way are enough",
        ),
        pytest.param(
            4,
            {**run(0, 1), 2: TERMINATING, 3: TERMINATING},
            (),
            [0, 1, 2, 3],
            [],
            [],
            id="4 -> 2 -> 4: indices are held until free",
        ),
        pytest.param(
            3,
            {**run(0, 1), 2: TERMINATING},
            (),
            [0, 1, 2],
            [],
            [],
            id="deleted by hand: same index once the pod is gone",
        ),
        pytest.param(
            3, {**run(0, 1), 2: FAILED}, (), [0, 1, 2], [], [], id="a failed pod holds its index until replaced"
        ),
        pytest.param(3, run(0), (1,), [0, 1, 2], [2], [], id="a name of an earlier job: waits for it"),
        pytest.param(2, {0: ENDED, 1: LIVE}, (), [0, 1], [], [], id="an ended one is no reason for another"),
    ],
)
def test_which_pods_stay_and_which_are_removed_or_created(
    wanted: int,
    there: Mapping[int, PodState | str],
    taken: tuple[int, ...],
    members: list[int],
    create: list[int],
    surplus: list[int],
) -> None:
    pods = {
        index: (
            make_pod(index, PodPhase.PENDING if state == PENDING else PodPhase.RUNNING),
            state if isinstance(state, PodState) else LIVE,
        )
        for index, state in there.items()
    }
    found = scale(wanted, pods, indices_in_use=frozenset(taken))
    assert (list(found.members), list(found.create), [pod.index for pod in found.surplus]) == (members, create, surplus)
