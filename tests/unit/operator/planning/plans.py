"""Plans of one job in a given state, and what they say."""

from __future__ import annotations

from typing import Any

import orjson
from elasticjob_api import ConditionType, ElasticJob, RendezvousStatus
from elasticjob_operator.planning import Action, CreateObject, CreatePod, Plan, plan
from elasticjob_operator.planning.actions import Target
from elasticjob_operator.policies.rendezvous import wanted_spec
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Admission, JobState, Kind, OwnedObject, Pod
from elasticjob_runtime.contract import SpecValue

from tests.unit.operator.builders import NOW, UID, at, make_job, make_pod, make_status

SETTINGS = Settings(endpoint="etcd:2379")


ADMITTED = Admission(template_hash=make_pod().template_hash, at=NOW)


def ask(job: ElasticJob, *pods: Pod, seconds: float = 0, settings: Settings = SETTINGS, **world: Any) -> Plan:
    return plan(job, JobState(pods=tuple(pods), **{"nodes": {}, **world}), settings, at(seconds))


def kinds(found: Plan) -> list[str]:
    return [type(action).__name__ for action in found.actions]


def names(found: Plan, kind: type[Action]) -> list[str]:
    """Of the objects that actions of that kind are about."""
    return [_name(action) for action in made(found, kind)]


def _name(action: Any) -> str:
    for attribute in ("name", "member"):
        if hasattr(action, attribute) and not isinstance(action, CreatePod):
            return str(getattr(action, attribute))
    return str(action.body["spec"].get("hostname") or action.body["metadata"]["name"])


def made(found: Plan, *kinds: type[Any]) -> list[Any]:
    """The actions of those kinds."""
    return [action for action in found.actions if isinstance(action, kinds)]


def target_of(found: Plan) -> Target:
    assert found.target is not None
    return found.target


def rendezvous_in(found: Plan) -> RendezvousStatus:
    assert found.status.rendezvous is not None
    return found.status.rendezvous


def said(found: Plan, type_: ConditionType) -> str:
    """The message of a condition."""
    known = found.status.condition(type_)
    assert known is not None
    return known.message


def environment(found: Plan) -> dict[str, str]:
    """Of the containers of the worker pods that are created."""
    (container,) = made(found, CreatePod)[0].body["spec"]["containers"]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def mounted(found: Plan) -> set[str]:
    """Secrets in the worker pods that are created."""
    volumes = [volume for action in made(found, CreatePod) for volume in action.body["spec"].get("volumes") or []]
    return {item["secret"]["secretName"] for item in volumes if "secret" in item}


def condition(found: Plan, type_: ConditionType) -> tuple[str, str]:
    known = found.status.condition(type_)
    return (known.status.value, known.reason) if known else ("", "")


def owned(found: Plan) -> dict[tuple[Kind, str], OwnedObject]:
    """The objects of a plan, as if they had been created."""
    return {
        (action.kind, action.body["metadata"]["name"]): owned_object(action.kind, action.body)
        for action in made(found, CreateObject)
    }


def owned_object(kind: Kind, body: dict[str, Any], **fields: Any) -> OwnedObject:
    """An object of the job that exists."""
    known = {"name": body["metadata"]["name"], "uid": "o", "owner_uid": UID, "terminating": False, **fields}
    return OwnedObject(kind=kind, json=orjson.dumps(body), **known)


def follow(job: ElasticJob, found: Plan) -> ElasticJob:
    return job.model_copy(update={"status": found.status})


def published(job: ElasticJob, *draining: str) -> SpecValue:
    return wanted_spec(job, draining=draining, max_restarts=job.spec.failure_policy.max_restarts)


def trained(replicas: int = 4, **job: Any) -> ElasticJob:
    status = job.pop("status", None) or make_status(
        ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, world_size=4
    )
    return make_job(replicas=replicas, status=status, **job)


METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]
