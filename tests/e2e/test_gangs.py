"""Jobs of which only one fits the nodes at a time, with the gang scheduling of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import COUNTING, Job

pytestmark = [pytest.mark.alone, pytest.mark.nightly]

ALL_NODES = "gang-test"
"""A label of pods of which no node takes two."""


def _one_per_node(manifest: dict[str, Any]) -> None:
    manifest["spec"]["scheduling"] = {"gang": {"provider": "Native"}}
    template = manifest["spec"]["workers"]["template"]
    template.setdefault("metadata", {}).setdefault("labels", {})[ALL_NODES] = "true"
    template["spec"]["affinity"] = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {ALL_NODES: "true"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }


def _on_nodes(job: Job) -> int:
    """How many of its worker pods have a node."""
    return sum("nodeName" in pod["spec"] for pod in job.pods)


def test_two_jobs_that_each_need_all_nodes_run_one_after_the_other(
    cluster: ClusterDriver, new_job: Callable[..., Job]
) -> None:
    served = cluster.kubectl.run("api-resources", "--api-group=scheduling.k8s.io", "--output=name").split()
    if "podgroups.scheduling.k8s.io" not in served:
        pytest.skip("this cluster does not serve PodGroup.scheduling.k8s.io: gang scheduling is off")
    nodes = sum("taints" not in node["spec"] for node in cluster.kubectl.items("nodes"))
    size = {"replicas": nodes, "least": nodes, "most": nodes, "command": COUNTING, "edit": _one_per_node}
    jobs = [new_job(name, **size) for name in ("gang-one", "gang-two")]
    eventually(lambda: any(job.is_true("Running") for job in jobs), 120, 0.3, "one of the two runs")
    first, second = sorted(jobs, key=lambda job: not job.is_true("Running"))
    first.trains(nodes)
    assert _on_nodes(second) == 0, "the other holds no node"

    def names_the_wait() -> bool:
        running = second.condition("Running")
        assert running.get("reason") == "Unschedulable", second.status.get("conditions")
        return True

    eventually(names_the_wait, 60, 0.3, "its condition says what it waits for")
    first.delete()
    second.trains(nodes)
