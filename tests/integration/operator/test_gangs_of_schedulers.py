"""Worker pods that start together by the PodGroups of Volcano and of the coscheduling plug-in, as their CRDs have
them. Their schedulers are not here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.cluster.loopback import ControlPlane
from hack.support import eventually
from tests.integration.operator.kube import Json, Kube, Namespace
from tests.integration.operator.optional_crds import PODGROUP_CRDS, installed
from tests.integration.operator.shared import running

LONG = 90.0


@pytest.fixture(scope="module", params=["Volcano", "Coscheduling"])
def provider(
    request: pytest.FixtureRequest,
    kube: Kube,
    control_plane_server: ControlPlane,
    control_plane: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The name of the one that the cluster serves, while an operator runs."""
    assert kube  # with the CRD of ElasticJobs
    folder = tmp_path_factory.mktemp("operator")
    with installed(control_plane_server, PODGROUP_CRDS[request.param]()), running(control_plane, folder):
        yield request.param


def group_of(pod: Json) -> str:
    metadata = pod["metadata"]
    named = metadata.get("annotations", {}).get("scheduling.k8s.io/group-name")
    return str(named or metadata["labels"].get("scheduling.x-k8s.io/pod-group", ""))


def test_worker_pods_name_a_group_that_needs_minimum_replicas(
    ns: Namespace, provider: str, submit: Callable[..., str]
) -> None:
    groups = f"podgroups of {provider}"
    submit(replicas=3, minReplicas=2, spec={"scheduling": {"gang": {"provider": provider}}})
    eventually(lambda: len(ns.workers()) == 3, LONG, what="all worker pods are created, or none could start")
    group = ns.get(groups, "digits-1")
    assert group
    assert group["spec"]["minMember"] == 2, "no field is lost: the CRD has it"
    assert group["metadata"]["ownerReferences"][0]["name"] == "digits"
    assert {group_of(pod) for pod in ns.workers().values()} == {"digits-1"}
    schedulers = {pod["spec"]["schedulerName"] for pod in ns.workers().values()}
    assert schedulers == ({"volcano"} if provider == "Volcano" else {"default-scheduler"})

    ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: _end_pods(ns), LONG, what="its pods end")
    eventually(lambda: ns.get(groups, "digits-1") is None, LONG, what="the group goes with its run")


def _end_pods(ns: Namespace) -> bool:
    """As kubelets do, once pods are deleted."""
    for name, pod in ns.workers().items():
        if "deletionTimestamp" in pod["metadata"]:
            ns.remove(name)
    return not ns.workers()


@pytest.mark.parametrize("provider", ["Volcano"], indirect=True)
def test_queue_and_priority_reach_volcano(ns: Namespace, provider: str, submit: Callable[..., str]) -> None:
    submit(
        spec={
            "suspend": True,
            "scheduling": {"gang": {"provider": provider}, "priorityClassName": "system-node-critical"},
        }
    )
    ns.patch("elasticjobs", "digits", {"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "research"}}})
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": False}})
    group = eventually(lambda: ns.get("podgroups of Volcano", "digits-1"), LONG, what="the group")
    assert group
    assert (group["spec"]["queue"], group["spec"]["priorityClassName"]) == ("research", "system-node-critical")
