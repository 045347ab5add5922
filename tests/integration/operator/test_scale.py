"""kubectl scale: up into free indices, down by draining first."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from hack.support import eventually
from tests.integration.operator.kube import Namespace
from tests.integration.operator.rendezvous import Agents


def indices(ns: Namespace) -> set[str]:
    return {name.rpartition("-")[2] for name, pod in ns.workers().items() if "deletionTimestamp" not in pod["metadata"]}


def test_two_four_two_with_draining_told_first(ns: Namespace, training: Callable[..., Agents]) -> None:
    node = f"node-{uuid.uuid4().hex[:6]}"
    ns.add_node(node)
    agents = training(replicas=2, node=node)
    ns.scale("digits", 4)
    eventually(lambda: indices(ns) == {"0", "1", "2", "3"}, what="four workers")
    for pod in ("digits-worker-2", "digits-worker-3"):
        ns.run(pod, node)
    told = eventually(lambda: (spec := agents.spec()) and spec.wanted == 4 and spec, what="the agents are told to grow")
    assert told
    assert told.members == [f"digits-worker-{index}" for index in range(4)]
    agents.plan(2, size=4)
    eventually(lambda: ns.status("digits")["worldSize"] == 4, what="world size")
    eventually(lambda: ns.status("digits")["workers"] == "4/4", what="all are ready")

    ns.scale("digits", 2)
    eventually(lambda: indices(ns) == {"0", "1"}, what="the highest two are deleted")
    # Bound pods stay until their kubelet ends them, so this is what the agents knew when SIGTERM came.
    spec = agents.spec()
    assert spec is not None
    assert (spec.members, spec.draining) == (
        ["digits-worker-0", "digits-worker-1"],
        ["digits-worker-2", "digits-worker-3"],
    )
    assert ns.workers()["digits-worker-2"]["metadata"]["deletionGracePeriodSeconds"] == 30, (
        "they get their time to save"
    )
    for pod in ("digits-worker-2", "digits-worker-3"):
        ns.remove(pod)
    eventually(lambda: (spec := agents.spec()) and spec.draining == [], what="nobody is draining any more")
    assert ns.status("digits")["restarts"]["total"] == 0
    ns.remove_node(node)


def test_growing_takes_the_lowest_free_index(ns: Namespace, training: Callable[..., Agents]) -> None:
    training(replicas=3)
    ns.scale("digits", 1)
    eventually(lambda: indices(ns) == {"0"}, what="one worker")
    ns.scale("digits", 2)
    eventually(lambda: indices(ns) == {"0", "1"}, what="index 1 again")
    assert ns.status("digits")["selector"] == "elasticjob.dev/job-name=digits,elasticjob.dev/component=worker"
