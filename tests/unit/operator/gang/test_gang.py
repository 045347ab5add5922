"""A gang: the PodGroup of a run, what names it in worker pods, and what happens where no scheduler has gangs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob
from elasticjob_operator.gang import KINDS, PROVIDERS, provider_of
from elasticjob_operator.planning import CreateObject, CreatePod, DeleteObject, DeletePod, PatchObject, Plan
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.state import Admission, Kind

from tests.unit.operator.builders import NAME, NOW, make_job, make_pod
from tests.unit.operator.planning.plans import ADMITTED, SETTINGS, ask, condition, made, names, owned, trained

GROUP = f"{NAME}-1"


def gang_job(provider: str | None, **job: Any) -> ElasticJob:
    gang = {} if provider is None else {"provider": provider}
    return make_job(spec={"scheduling": {"gang": gang, "priorityClassName": "high"}}, **job)


def accepted(job: ElasticJob) -> Admission:
    return Admission(template_hash=hash_of(job), at=NOW)


def bodies(found: Plan, kind: type[CreatePod] | type[CreateObject]) -> list[Any]:
    return [action.body for action in made(found, kind)]


@pytest.mark.parametrize(
    ("provider", "api_version", "spec", "path", "value"),
    [
        (
            "Native",
            "scheduling.k8s.io/v1alpha2",
            {"schedulingPolicy": {"gang": {"minCount": 2}}},
            ("spec", "schedulingGroup"),
            {"podGroupName": GROUP},
        ),
        (
            "Volcano",
            "scheduling.volcano.sh/v1beta1",
            {"minMember": 2, "priorityClassName": "high"},
            ("metadata", "annotations", "scheduling.k8s.io/group-name"),
            GROUP,
        ),
        (
            "Coscheduling",
            "scheduling.x-k8s.io/v1alpha1",
            {"minMember": 2, "scheduleTimeoutSeconds": 60},
            ("metadata", "labels", "scheduling.x-k8s.io/pod-group"),
            GROUP,
        ),
    ],
)
def test_group_of_minimum_replicas_exists_before_the_worker_pods_that_name_it(
    provider: str, api_version: str, spec: dict[str, Any], path: tuple[str, ...], value: object
) -> None:
    job = gang_job(provider)
    first = ask(job, admission=accepted(job), served=frozenset(KINDS))
    (group,) = [body for body in bodies(first, CreateObject) if body["kind"] == "PodGroup"]
    assert (group["apiVersion"], group["metadata"]["name"], group["spec"]) == (api_version, GROUP, spec)
    assert bodies(first, CreatePod) == [], "they would be scheduled one by one"
    then = ask(job, admission=accepted(job), served=frozenset(KINDS), objects=owned(first))
    pods = bodies(then, CreatePod)
    assert len(pods) == 4
    for pod in pods:
        found = pod
        for key in path:
            found = found[key]
        assert found == value


def test_etcd_is_never_part_of_the_group_that_waits() -> None:
    settings = dataclasses.replace(SETTINGS, endpoint="", etcd_tls=False)
    job = gang_job("Native")
    found = ask(job, admission=accepted(job), served=frozenset(KINDS), settings=settings)
    (etcd,) = [body for body in bodies(found, CreateObject) if body["kind"] == "StatefulSet"]
    assert "schedulingGroup" not in etcd["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("provider", "served", "taken"),
    [
        (None, set(), None),
        (None, {Kind.VOLCANO_POD_GROUP}, Kind.VOLCANO_POD_GROUP),
        ("Auto", KINDS, Kind.POD_GROUP),
        ("Auto", {Kind.COSCHEDULING_POD_GROUP, Kind.VOLCANO_POD_GROUP}, Kind.VOLCANO_POD_GROUP),
        ("None", KINDS, None),
        ("Volcano", set(), Kind.VOLCANO_POD_GROUP),
    ],
)
def test_auto_takes_the_first_scheduler_that_is_served_and_a_name_takes_that_one(
    provider: str | None, served: set[Kind], taken: Kind | None
) -> None:
    found = provider_of(gang_job(provider), served)
    assert (found.kind if found is not None else None) == taken


def test_job_without_a_gang_gets_none() -> None:
    assert provider_of(make_job(), KINDS) is None
    found = ask(make_job(), admission=ADMITTED, served=frozenset(KINDS))
    assert [body["kind"] for body in bodies(found, CreateObject)] == ["Service"]
    assert len(bodies(found, CreatePod)) == 4


def test_scheduler_that_is_not_there_is_named_and_a_job_that_trains_is_left_alone() -> None:
    found = ask(gang_job("Volcano"), admission=ADMITTED)
    assert condition(found, ConditionType.ACCEPTED) == ("False", "GangUnavailable")
    assert "scheduling.volcano.sh" in found.status.condition(ConditionType.ACCEPTED).message  # type: ignore[union-attr]
    assert names(found, CreatePod) == []
    running = trained(spec={"scheduling": {"gang": {"provider": "Volcano"}}})
    assert condition(ask(running, *[make_pod(index) for index in range(4)]), ConditionType.ACCEPTED)[0] == "True"


def test_group_of_an_earlier_run_is_deleted() -> None:
    job, served = gang_job("Native"), frozenset(KINDS)
    before = owned(ask(job, admission=accepted(job), served=served))
    early = dataclasses.replace(before[Kind.POD_GROUP, GROUP], name=f"{NAME}-0")
    found = ask(job, admission=accepted(job), served=served, objects={**before, (early.kind, early.name): early})
    assert names(found, DeleteObject) == [f"{NAME}-0"]


@pytest.mark.parametrize(
    ("provider", "patches"),
    [("Native", []), ("Volcano", [{"spec": {"minMember": 3}}]), ("Coscheduling", [{"spec": {"minMember": 3}}])],
)
def test_another_minimum_changes_the_group_of_the_run_where_that_is_possible(
    provider: str, patches: list[dict[str, Any]]
) -> None:
    """Kubernetes rejects another minCount, so the operator would ask for it in every plan."""
    served = frozenset(KINDS)
    before = owned(ask(gang_job(provider), admission=accepted(gang_job(provider)), served=served))
    job = gang_job(provider, min=3)
    pods = [dataclasses.replace(make_pod(index), template_hash=hash_of(job)) for index in range(4)]
    found = ask(job, *pods, served=served, objects=before)
    assert [action.patch for action in made(found, PatchObject)] == patches
    assert (names(found, DeleteObject), names(found, DeletePod)) == ([], [])


def test_volcano_gets_its_queue_and_keeps_the_scheduler_of_the_template() -> None:
    job = gang_job("Volcano", template={"spec": {"schedulerName": "mine", "containers": [{"name": "c"}]}})
    annotations = {"scheduling.volcano.sh/queue-name": "research"}
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})
    volcano = PROVIDERS[job.spec.scheduling.gang.provider]  # type: ignore[union-attr]
    assert volcano.pod_group(job, 1)["spec"]["queue"] == "research"
    pod: dict[str, Any] = {"metadata": {}, "spec": {"schedulerName": "mine"}}
    volcano.decorate(pod, GROUP)
    assert pod["spec"]["schedulerName"] == "mine"
