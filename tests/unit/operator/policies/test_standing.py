from __future__ import annotations

import pytest
from elasticjob_operator.policies.standing import Standing, standing
from elasticjob_operator.world import Node, Pod, PodPhase

from tests.unit.operator.builders import NOW, at, failed_pod, make_node, make_pod

GOOD = make_node("good")


def nodes(*others: Node) -> dict[str, Node]:
    return {node.name: node for node in (GOOD, *others)}


@pytest.mark.parametrize(
    ("pod", "known", "expected", "again"),
    [
        pytest.param(make_pod(), nodes(), Standing.LIVE, None, id="not scheduled"),
        pytest.param(make_pod(node="good"), nodes(), Standing.LIVE, None, id="runs"),
        pytest.param(make_pod(node="bad"), nodes(make_node("bad", ready=False, since=-2)), Standing.LIVE, 3, id="node away for 2 s"),
        pytest.param(make_pod(node="bad"), nodes(make_node("bad", ready=False, since=-5)), Standing.LOST, None, id="node away for 5 s"),
        pytest.param(
            make_pod(node="bad"), {"bad": make_node("bad", ready=False, since=-99)}, Standing.LIVE, None, id="all nodes away: not theirs"
        ),
        pytest.param(make_pod(node="gone", created=-60), nodes(), Standing.LOST, None, id="node deleted"),
        pytest.param(make_pod(node="new", created=-1), nodes(), Standing.LIVE, 9, id="node not told of yet"),
        pytest.param(make_pod(node="good", delete_by=20), nodes(), Standing.LEAVING, 320, id="deleted by hand"),
        pytest.param(make_pod(node="good", delete_by=-100), nodes(), Standing.LEAVING, 200, id="ends slowly on a good node"),
        pytest.param(make_pod(node="good", delete_by=-300), nodes(), Standing.LOST, None, id="stuck on a good node"),
        pytest.param(
            make_pod(node="bad", delete_by=30), nodes(make_node("bad", ready=False, since=-6)), Standing.LOST, None, id="deleted, node dead"
        ),
        pytest.param(failed_pod(node="bad"), nodes(make_node("bad", ready=False, since=-99)), Standing.FAILED, None, id="failed before"),
        pytest.param(
            make_pod(phase=PodPhase.SUCCEEDED, node="bad"),
            nodes(make_node("bad", ready=False, since=-99)),
            Standing.SUCCEEDED,
            None,
            id="succeeded before its node died",
        ),
        pytest.param(
            failed_pod(node="bad", delete_by=0),
            nodes(make_node("bad", ready=False, since=-99)),
            Standing.LOST,
            None,
            id="failed, deleted, node dead: stuck",
        ),
        pytest.param(make_pod(node="any"), None, Standing.LIVE, None, id="may not see nodes"),
        pytest.param(make_pod(node="any", delete_by=-10), None, Standing.LEAVING, 20, id="may not see nodes: ends late"),
        pytest.param(make_pod(node="any", delete_by=-31), None, Standing.LOST, None, id="may not see nodes: stuck"),
    ],
)
def test_dead_node_pod_is_not_waited_for(pod: Pod, known: dict[str, Node] | None, expected: Standing, again: float | None) -> None:
    found = standing(pod, known, node_lost_seconds=5, stuck_seconds=300, now=NOW)
    assert found.standing is expected
    assert found.look_again == (at(again) if again is not None else None)


def test_the_reason_names_the_node() -> None:
    found = standing(make_pod(node="bad"), nodes(make_node("bad", ready=False, since=-9)), node_lost_seconds=5, stuck_seconds=300, now=NOW)
    assert found.why == "node bad is not ready"
