"""The objects of a job besides its pods, across releases of the operator."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elasticjob_operator.kube.convert import object_of
from elasticjob_operator.names import ANNOTATION_APPLIED
from elasticjob_operator.planning import CreateObject, PatchObject, plan
from elasticjob_operator.resources import etcd as building
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.resources.services import etcd_service, workers_service
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState, Kind, OwnedObject, PodPhase

from tests.unit.operator.builders import NOW, make_job, make_pod, make_status, make_view
from tests.unit.operator.planning.plans import ADMITTED, ask, made, names
from tests.unit.operator.tables import table

OLD = Path(__file__).parents[1] / "fixtures" / "objects-0.1.json"
"""As the release before built them, which knew no hash of what was applied."""
STATEFUL_SET = (Kind.STATEFUL_SET, "digits-etcd")
Objects = dict[tuple[Kind, str], dict[str, Any]]


def older() -> Objects:
    found = json.loads(OLD.read_text(encoding="utf-8"))
    return {(Kind(name.partition("/")[0]), name.partition("/")[2]): body for name, body in found.items()}


def ours() -> Objects:
    job = make_job()
    return {
        STATEFUL_SET: etcd_stateful_set(job, "etcd:1"),
        (Kind.SERVICE, "digits-etcd"): etcd_service(job),
        (Kind.SERVICE, "digits"): workers_service(job),
    }


def patches(objects: Objects, settings: Settings | None = None) -> list[PatchObject]:
    """What is patched of a job that runs, where these are there."""
    known: dict[tuple[Kind, str], OwnedObject] = {}
    for (kind, name), body in objects.items():
        completed = copy.deepcopy(body)
        completed["metadata"] |= {"uid": name}
        known[(kind, name)] = object_of(kind)(completed)
    pods = tuple(make_pod(index, ready=True) for index in range(4))
    decided = plan(
        make_job(), JobState(pods=pods, objects=known, nodes=None, rendezvous=make_view()), settings or Settings(), NOW
    )
    return made(decided, PatchObject)


def with_another_flag(body: dict[str, Any]) -> None:
    body["spec"]["template"]["spec"]["containers"][0]["command"].append("--log-level=debug")


@pytest.mark.parametrize("made", [older, ours])
def test_an_upgrade_does_not_touch_the_objects_of_a_running_job(made: Callable[[], Objects]) -> None:
    assert patches(made()) == []


@pytest.mark.parametrize("made", [older, ours])
def test_an_upgrade_with_another_etcd_template_restarts_no_etcd(
    made: Callable[[], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = made()
    real = building._flags
    monkeypatch.setattr(building, "_flags", lambda job, run, *, tls: [*real(job, run, tls=tls), "--log-level=debug"])
    assert patches(there) == []


def test_changed_settings_of_the_operator_restart_no_etcd() -> None:
    assert patches(ours(), Settings(etcd_image="etcd:2", etcd_pod={"nodeSelector": {"pool": "infra"}})) == []


def test_a_changed_object_is_restored() -> None:
    there = ours()
    with_another_flag(there[STATEFUL_SET])
    (patch,) = patches(there)
    assert "--log-level=debug" not in patch.patch["spec"]["template"]["spec"]["containers"][0]["command"]


@pytest.mark.parametrize("made", [older, ours])
def test_a_changed_object_is_restored_after_an_upgrade_except_its_template(
    made: Callable[[], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = made()
    there[STATEFUL_SET]["spec"]["replicas"] = 0
    there[(Kind.SERVICE, "digits-etcd")]["spec"]["selector"]["more"] = "x"
    real = building._flags
    monkeypatch.setattr(building, "_flags", lambda job, run, *, tls: [*real(job, run, tls=tls), "--log-level=debug"])
    found = {(patch.kind, patch.name): patch.patch for patch in patches(there)}
    assert found == {
        STATEFUL_SET: {"spec": {"replicas": 1}},
        (Kind.SERVICE, "digits-etcd"): {"spec": {"selector": {"more": None}}},
    }


def test_the_annotation_is_the_hash_of_the_applied_template() -> None:
    one, two = etcd_stateful_set(make_job(), "etcd:1"), etcd_stateful_set(make_job(), "etcd:2")
    assert one["metadata"]["annotations"][ANNOTATION_APPLIED] != two["metadata"]["annotations"][ANNOTATION_APPLIED]


C10D = {"rendezvous": {"backend": "c10d"}}


@table(
    "replicas, running, job, named",
    {
        "few: from the start": (100, 0, {}, True),
        "many, to be created": (101, 0, {}, False),
        "the last one is to be created": (101, 100, {}, False),
        "all run": (101, 101, {}, True),
        "it trains, or has trained, without the rest": (101, 99, {"status": make_status(round=1)}, True),
        "torch's own rendezvous finds worker pod 0 by its name": (101, 0, {"spec": C10D}, True),
    },
)
def test_a_large_job_gets_its_dns_names_when_its_pods_run(
    replicas: int, running: int, job: dict[str, Any], named: bool
) -> None:
    """Otherwise its endpoints, written again for each pod that starts, take longer than the pods."""
    pods = [make_pod(index) for index in range(running)]
    found = ask(make_job(replicas=replicas, max=replicas, **job), *pods, admission=ADMITTED, rendezvous=make_view())
    assert ("digits" in names(found, CreateObject)) is named


def test_a_pending_pod_delays_the_names_of_a_large_job_but_never_takes_them_away() -> None:
    job = make_job(replicas=101, max=101)
    pods = [make_pod(0, PodPhase.PENDING), *(make_pod(index) for index in range(1, 101))]
    found = ask(job, *pods, admission=ADMITTED, rendezvous=make_view())
    assert "digits" not in names(found, CreateObject)
    body = workers_service(job)
    body["metadata"]["uid"] = "s"
    body["spec"]["selector"] = {}
    known = {(Kind.SERVICE, "digits"): object_of(Kind.SERVICE)(body)}
    again = ask(job, *pods, admission=ADMITTED, rendezvous=make_view(), objects=known)
    assert names(again, PatchObject) == ["digits"], "it is still the job's"
