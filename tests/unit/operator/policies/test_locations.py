"""When the operator tells the agents where their nodes are, and what."""

from __future__ import annotations

import pytest
from elasticjob_operator.node_state import Node, NodeHealth
from elasticjob_operator.policies.locations import locations

from tests.unit.operator.builders import NOW, make_pod


def nodes(**paths: str) -> dict[str, Node]:
    return {
        name: Node(name=name, health=NodeHealth.READY, since=NOW, seen_at=NOW, location=path)
        for name, path in paths.items()
    }


@pytest.mark.parametrize(
    ("placed", "known", "expected"),
    [
        ("abc", nodes(a="r1", b="r2", c="r1"), ["r1/a", "r2/b", "r1/c"]),
        ("abc", nodes(a="b1/r1", b="b1/r2", c="b2/r1"), ["b1/r1/a", "b1/r2/b", "b2/r1/c"]),
        # Two on one node, without any labels.
        ("aba", nodes(a="", b=""), ["a", "b", "a"]),
        # Any order is as good as another.
        ("abc", nodes(a="", b="", c=""), []),
        ("abc", nodes(a="r1", b="r1", c="r1"), []),
        ("aaa", nodes(a="r1"), []),
        ("ab", nodes(a="r1", b="r2"), []),
        # A pod without a node, or on one that is not known, has no location.
        (("a", "", "b", "x", "c"), nodes(a="r1", b="r2", c="r1"), ["r1/a", None, "r2/b", None, "r1/c"]),
        ("abc", {}, []),
    ],
)
def test_locations_are_given_if_the_order_of_the_pods_matters(
    placed: str, known: dict[str, Node], expected: list[str | None]
) -> None:
    pods = [make_pod(index, node=node) for index, node in enumerate(placed)]
    found = locations(pods, known)
    assert found == {pod.name: path for pod, path in zip(pods, expected, strict=False) if path}
