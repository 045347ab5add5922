"""Nodes that are silent, say that they are not ready, come back, or keep a pod: what becomes of the pods on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents
from tests.integration.operator.test_workers import nodes, uid_of

__all__ = ["nodes"]

WORKER = "digits-worker-2"


@pytest.fixture
def on_bad_node(
    ns: Namespace, nodes: tuple[str, str], endpoint: str, training: Callable[..., Agents]
) -> Callable[..., str]:
    """A job of three that trains, its worker 2 on a node of its own; returns that node."""

    def start(**rendezvous: str) -> str:
        good, bad = nodes
        training(replicas=2, node=good, spec={"rendezvous": {"type": "External", "endpoint": endpoint, **rendezvous}})
        ns.scale("digits", 3)
        eventually(lambda: WORKER in ns.workers(), what="a third pod")
        ns.run(WORKER, bad)
        return bad

    return start


def looked(ns: Namespace) -> None:
    """The operator has decided once more since this was called."""
    replicas = len(ns.workers())
    ns.scale("digits", replicas + 1)
    eventually(lambda: len(ns.workers()) == replicas + 1, what="another worker: the operator has looked")


def test_operator_that_starts_hears_kubelets_first(
    ns: Namespace, on_bad_node: Callable[..., str], operator: Operator, start_operator: Callable[..., Operator]
) -> None:
    """What a node was before it began to watch says nothing: the API server itself may have been away."""
    bad = on_bad_node()
    before = uid_of(ns, WORKER)
    operator.stop()
    ns.set_node(bad, ready=None, since=rfc3339(-600))
    start_operator(ELASTICJOB_NODE_SETTLE_SECONDS="3600", ELASTICJOB_NODE_LOST_SECONDS="0")
    looked(ns)
    assert uid_of(ns, WORKER) == before


@pytest.mark.usefixtures("operator")
def test_agents_learn_in_which_racks_their_nodes_are(
    ns: Namespace,
    nodes: tuple[str, str],
    submit: Callable[..., str],
    agents_of: Callable[..., Agents],
) -> None:
    """For the order of their ranks; see the unit tests of the planner for what they make of it."""
    for node, rack in zip(nodes, ("7", "8"), strict=True):
        ns.label_node(node, {"topology.kubernetes.io/zone": "a", "cloud.google.com/gce-topology-block": rack})
    submit(replicas=3)
    eventually(lambda: len(ns.workers()) == 3, what="worker pods")
    for index, node in ((0, nodes[0]), (1, nodes[1]), (2, nodes[0])):
        ns.run(f"digits-worker-{index}", node)
    first, second = (f"a/{rack}/{node}" for rack, node in zip(("7", "8"), nodes, strict=True))
    wanted = [first, second, first]
    pods = [ns.pod_name(f"digits-worker-{index}") for index in range(3)]
    agents = agents_of("digits")
    eventually(lambda: [agents.locations().get(pod) for pod in pods] == wanted, what="locations of all three")
