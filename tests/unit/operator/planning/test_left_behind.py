"""A job that is created while objects of a deleted job of its name are left, as after `--cascade=orphan`."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
from elasticjob_api import ConditionType, ElasticJob
from elasticjob_operator.planning import CreateObject, CreatePod, Plan
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, Kind, OwnedObject, Pod, Rejection

from tests.unit.operator.builders import at, make_job, make_pod, make_view
from tests.unit.operator.planning.plans import ADMITTED, ask, condition, kinds, names, said

OWN_ETCD = Settings()
NAMED = [
    (Kind.NETWORK_POLICY, "digits-worker"),
    (Kind.SERVICE, "digits"),
    (Kind.STATEFUL_SET, "digits-etcd"),
    (Kind.SERVICE, "digits-etcd"),
]


def found(*objects: tuple[Kind, str], owner: str = "", terminating: bool = False) -> tuple[OwnedObject, ...]:
    body = orjson.dumps(etcd_stateful_set(make_job(), "etcd:1", secret="digits-etcd-beef-1"))
    return tuple(
        OwnedObject(kind=kind, name=name, uid=name, owner_uid=owner, terminating=terminating, json=body)
        for kind, name in objects
    )


def new_job() -> ElasticJob:
    job = make_job()
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"creation_timestamp": at(-60)})})


def start(**world: Any) -> Plan:
    view = make_view(Connectivity.REACHABLE)
    return ask(new_job(), **{"admission": ADMITTED, "settings": OWN_ETCD, "rendezvous": view, **world})


def orphan(**fields: Any) -> Pod:
    pod = dataclasses.replace(make_pod(0), name="digits-worker-0-bb9bk", job_uid="", created_at=at(-600))
    return dataclasses.replace(pod, **fields)


def test_nothing_is_created_and_the_old_etcd_is_not_followed() -> None:
    plan = start(foreign=found(*NAMED))
    assert not kinds(plan)
    assert plan.target is None
    assert condition(plan, ConditionType.RENDEZVOUS_READY) == ("False", "NameInUse")


def test_one_message_has_one_command_for_all_of_them() -> None:
    plan = start(foreign=found(*NAMED), leftovers=(orphan(),))
    assert condition(plan, ConditionType.RUNNING) == ("False", "NameInUse")
    assert said(plan, ConditionType.RUNNING).endswith(
        "kubectl delete networkpolicy/digits-worker pod/digits-worker-0-bb9bk secret/digits-etcd-beef-1 service/digits "
        "service/digits-etcd statefulset/digits-etcd -n ml"
    )
    assert [event.message.count("kubectl") for event in plan.events if event.warning] == [1]


def test_each_of_them_holds_the_job() -> None:
    for item in NAMED:
        assert not kinds(start(foreign=found(item))), item
    assert not kinds(start(leftovers=(orphan(),)))


def test_the_job_starts_once_they_are_gone() -> None:
    plan = start(leftovers=(orphan(deletion_timestamp=at(0)),))
    assert len(names(plan, CreatePod)) == 4
    assert "digits-etcd" in names(plan, CreateObject)
    assert plan.target is not None


def test_what_the_garbage_collector_deletes_is_waited_for_without_a_warning() -> None:
    for left in (found(*NAMED, owner="old"), found(*NAMED, terminating=True)):
        plan = start(foreign=left)
        assert not kinds(plan)
        assert plan.target is None
        assert condition(plan, ConditionType.RUNNING) == ("False", "WaitingForWorkers")
        assert not [event for event in plan.events if event.warning]


def test_objects_with_the_label_but_other_names_and_copies_of_pods_hold_nothing() -> None:
    other = found(
        (Kind.SERVICE, "mine"),
        (Kind.STATEFUL_SET, "digits-etcd-2"),
        *((kind, "digits") for kind in (Kind.NETWORK_POLICY, Kind.AUTOSCALER)),  # a user's own
        (Kind.DISRUPTION_BUDGET, "digits-etcd"),
    )
    copies = (orphan(created_at=at(-1)), orphan(name="debug"), orphan(component="etcd", name="digits-etcd-0"))
    assert len(names(start(foreign=other, leftovers=copies), CreatePod)) == 4


def test_a_job_that_has_worker_pods_keeps_following_its_etcd() -> None:
    """Someone removed the owner of its Service."""
    plan = ask(new_job(), make_pod(0), admission=ADMITTED, settings=OWN_ETCD, foreign=found(NAMED[1]))
    assert plan.target is not None
    assert "digits-etcd" in names(plan, CreateObject)
    assert condition(plan, ConditionType.RENDEZVOUS_READY) != ("False", "NameInUse")


def test_no_worker_pod_is_created_while_its_etcd_cannot_be() -> None:
    """A StatefulSet of no job has its name."""
    taken = Rejection(kinds=frozenset({"StatefulSet"}), message="exists", retry_at=at(10))
    assert not names(start(rejection=taken), CreatePod)
    assert not names(start(rejection=taken, seconds=10), CreatePod)
