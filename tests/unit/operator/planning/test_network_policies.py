"""When the NetworkPolicies of a job are created, repaired and deleted."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import orjson
import pytest
from elasticjob_api import ConditionType
from elasticjob_operator.planning import CreateObject, CreatePod, DeleteObject, PatchObject, Plan
from elasticjob_operator.settings import NetworkPolicySettings, Settings
from elasticjob_operator.state import Kind, OwnedObject, Rejection

from tests.unit.operator.builders import at, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.planning.plans import ADMITTED, ask, condition, made, names, owned, trained

OPERATOR = {"podSelector": {"matchLabels": {"app": "operator"}}}
ON = Settings(network_policies=NetworkPolicySettings(operator=(OPERATOR,), metrics_port=9100))
OFF = Settings()
SHARED = dataclasses.replace(ON, endpoint="etcd:2379")
Objects = dict[tuple[Kind, str], OwnedObject]


def created(found: Plan) -> set[str]:
    return {f"{action.kind}/{action.body['metadata']['name']}" for action in made(found, CreateObject)}


def all_objects(settings: Settings = ON) -> Objects:
    """Of a job that has started."""
    first = owned(ask(make_job(), admission=ADMITTED, settings=settings))
    return {**first, **owned(ask(make_job(), admission=ADMITTED, settings=settings, objects=first))}


def running(objects: Objects, settings: Settings = ON, **world: Any) -> Plan:
    pods = [make_pod(index, ready=True) for index in range(4)]
    return ask(trained(), *pods, settings=settings, objects=objects, rendezvous=make_view(plan=make_plan()), **world)


def test_policies_exist_before_the_first_pod() -> None:
    first = ask(make_job(), admission=ADMITTED, settings=ON)
    assert names(first, CreatePod) == []
    assert created(first) == {
        "NetworkPolicy/digits-worker",
        "NetworkPolicy/digits-etcd",
        "Service/digits",
        "Service/digits-etcd",
    }
    then = ask(make_job(), admission=ADMITTED, settings=ON, objects=owned(first))
    assert created(then) == {"StatefulSet/digits-etcd"}
    assert len(names(then, CreatePod)) == 4


def test_a_lost_pod_is_replaced_only_after_a_deleted_policy_is_back() -> None:
    objects = all_objects()
    del objects[Kind.NETWORK_POLICY, "digits-worker"]
    found = ask(trained(), make_pod(0), settings=ON, objects=objects, rendezvous=make_view(plan=make_plan()))
    assert created(found) == {"NetworkPolicy/digits-worker"}
    assert names(found, CreatePod) == []
    again = {**objects, **owned(found)}
    found = ask(trained(), make_pod(0), settings=ON, objects=again, rendezvous=make_view(plan=make_plan()))
    assert len(names(found, CreatePod)) == 3


def test_a_rejected_policy_keeps_pods_from_being_created_and_says_why() -> None:
    rejection = Rejection(
        kinds=frozenset({"NetworkPolicy"}), message="networkpolicies is forbidden: no permission", retry_at=at(8)
    )
    found = ask(make_job(), admission=ADMITTED, settings=SHARED, rejection=rejection)
    assert names(found, CreatePod) == []
    assert created(found) == {"Service/digits"}
    assert condition(found, ConditionType.RUNNING) == ("False", "ObjectRejected")
    assert found.requeue_at == at(8)


def test_a_job_that_uses_a_shared_etcd_gets_a_policy_for_its_worker_pods_only() -> None:
    assert created(ask(make_job(), admission=ADMITTED, settings=SHARED)) == {
        "NetworkPolicy/digits-worker",
        "Service/digits",
    }


def test_without_the_setting_no_policy_is_created_and_nothing_waits() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=OFF)
    assert created(found) == {"Service/digits", "Service/digits-etcd", "StatefulSet/digits-etcd"}
    assert len(names(found, CreatePod)) == 4


def test_turning_the_setting_off_deletes_the_policies_of_running_jobs() -> None:
    found = running(all_objects(), OFF)
    deleted = {(action.kind, action.name) for action in made(found, DeleteObject)}
    assert deleted == {(Kind.NETWORK_POLICY, "digits-worker"), (Kind.NETWORK_POLICY, "digits-etcd")}


def test_turning_the_setting_on_protects_running_jobs_and_touches_nothing_else() -> None:
    found = running(all_objects(OFF))
    assert created(found) == {"NetworkPolicy/digits-worker", "NetworkPolicy/digits-etcd"}
    assert names(found, PatchObject) == []


def widened(spec: dict[str, Any]) -> None:
    spec["ingress"][0]["from"][0]["namespaceSelector"] = {}


def with_another_rule(spec: dict[str, Any]) -> None:
    spec["ingress"].append({})


def with_a_port_range(spec: dict[str, Any]) -> None:
    spec["ingress"][1]["ports"][0]["endPort"] = 65535


def selecting_less(spec: dict[str, Any]) -> None:
    spec["podSelector"]["matchLabels"]["app"] = "none"


def without_rules(spec: dict[str, Any]) -> None:
    del spec["ingress"]


@pytest.mark.parametrize("change", [widened, with_another_rule, with_a_port_range, selecting_less, without_rules])
def test_a_changed_policy_is_restored(change: Any) -> None:
    objects = all_objects()
    key = (Kind.NETWORK_POLICY, "digits-etcd")
    body = copy.deepcopy(dict(objects[key].body))
    change(body["spec"])
    objects[key] = dataclasses.replace(objects[key], json=orjson.dumps(body))
    (patch,) = made(running(objects), PatchObject)
    assert (patch.kind, patch.name) == key
    assert patch.patch.keys() == {"spec"}


def test_an_unchanged_policy_is_left_alone() -> None:
    assert names(running(all_objects()), PatchObject) == []


def test_policies_are_deleted_with_everything_else_of_a_finished_job() -> None:
    job = make_job(status=make_status(ConditionType.ACCEPTED, ConditionType.SUCCEEDED))
    found = ask(job, settings=ON, objects=all_objects())
    assert {"digits-worker", "digits-etcd"} <= {
        action.name
        for action in found.actions
        if isinstance(action, DeleteObject) and action.kind is Kind.NETWORK_POLICY
    }
