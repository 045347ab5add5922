"""A job whose etcd wants credentials: what is created when, mounted and removed."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import ConditionType, RendezvousStatus
from elasticjob_operator.planning import Action, ClearRun, CreatePod, CreateRunUser, DeleteCertificates, PublishSpec
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, Rejection, RendezvousView
from elasticjob_runtime.contract import SpecValue

from tests.unit.operator.builders import NOW, UID, at, make_job, make_status, make_view
from tests.unit.operator.planning.plans import ADMITTED, ask, condition, environment, kinds, made, mounted, target_of

SECRET = ("elasticjob-system", "shared-etcd")
SHARED = Settings(endpoint="https://etcd.infra.svc:2379", endpoint_secret=SECRET, ca_namespace="elasticjob-system")
RUN_SECRET, USER = f"digits-rendezvous-{UID[:8]}-1", f"elasticjob-{UID}-1"
PUBLISHED = make_view(spec=SpecValue(min=2, max=8, wanted=4))
MINE: dict[str, Any] = {"rendezvous": {"type": "External", "endpoint": "https://mine:2379", "secretName": "mine"}}


def test_a_run_in_the_shared_etcd_gets_a_user_before_its_pods() -> None:
    job = make_job()
    first = ask(job, admission=ADMITTED, settings=SHARED, rendezvous=make_view())
    assert made(first, PublishSpec)
    assert not made(first, CreatePod)
    assert condition(first, ConditionType.RUNNING) == ("False", "WaitingForEtcd")
    then = ask(job, admission=ADMITTED, settings=SHARED, rendezvous=PUBLISHED)
    (user,) = made(then, CreateRunUser)
    assert (user.user, user.run_id, user.credentials, user.earlier_user) == (USER, f"{UID}-1", SECRET, "")
    assert user.body["metadata"]["name"] == RUN_SECRET
    assert user.body["metadata"]["ownerReferences"][0]["uid"] == UID
    assert mounted(then) == {RUN_SECRET}, "and never the operator's own Secret"
    assert environment(then)["PET_RDZV_ENDPOINT"] == "https://etcd.infra.svc:2379"
    assert environment(then)["PET_RDZV_CONF"] == "credentials=/etc/elasticjob/etcd"
    assert (target_of(then).secret, target_of(then).user, target_of(then).tls) == (SECRET, USER, False)


def test_a_later_run_removes_the_user_of_the_one_before() -> None:
    status = make_status(rendezvous=RendezvousStatus(id=f"{UID}-3", endpoint=SHARED.endpoint))
    found = ask(make_job(status=status), admission=ADMITTED, settings=SHARED, rendezvous=PUBLISHED)
    (user,) = made(found, CreateRunUser)
    assert (user.user, user.earlier_user) == (f"elasticjob-{UID}-3", f"elasticjob-{UID}-2")


def test_nothing_is_created_while_the_user_cannot_be() -> None:
    refused = Rejection(kinds=frozenset({"Secret"}), message="permission denied", retry_at=at(10))
    found = ask(make_job(), admission=ADMITTED, settings=SHARED, rendezvous=PUBLISHED, rejection=refused)
    assert not made(found, CreatePod)
    assert not made(found, CreateRunUser)
    assert condition(found, ConditionType.RUNNING) == ("False", "ObjectRejected")
    later = ask(make_job(), admission=ADMITTED, settings=SHARED, rendezvous=PUBLISHED, rejection=refused, seconds=10)
    assert made(later, CreateRunUser)


def test_a_job_with_its_own_secret_mounts_it_and_gets_no_user() -> None:
    found = ask(make_job(spec=MINE), admission=ADMITTED, settings=SHARED, rendezvous=make_view())
    assert mounted(found) == {"mine"}
    assert not made(found, CreateRunUser)
    assert environment(found)["PET_RDZV_CONF"] == "credentials=/etc/elasticjob/etcd"
    assert (target_of(found).secret, target_of(found).user) == (("ml", "mine"), "")


@pytest.mark.parametrize(
    ("connectivity", "reason"),
    [
        (Connectivity.NO_CREDENTIALS, "EtcdCredentialsUnusable"),
        (Connectivity.DENIED, "EtcdDenied"),
        (Connectivity.UNTRUSTED, "EtcdUntrusted"),
    ],
)
def test_rejected_credentials_create_no_pods_and_warn_once(connectivity: Connectivity, reason: str) -> None:
    view = make_view(connectivity, error="authentication failed")
    found = ask(make_job(spec=MINE), admission=ADMITTED, settings=SHARED, rendezvous=view)
    assert not made(found, CreatePod)
    assert condition(found, ConditionType.RENDEZVOUS_READY) == ("False", reason)
    assert found.status.summary == reason
    (event,) = [item for item in found.events if item.reason == reason]
    assert event.warning
    again = ask(make_job(spec=MINE, status=found.status), admission=ADMITTED, settings=SHARED, rendezvous=view)
    assert not again.events


def test_a_secret_of_the_operator_is_neither_read_nor_mounted() -> None:
    settings = Settings(endpoint=SHARED.endpoint, endpoint_secret=("ml", "mine"))
    found = ask(make_job(spec=MINE), admission=ADMITTED, settings=settings, rendezvous=make_view())
    assert not kinds(found)
    assert found.target is None
    for type_ in (ConditionType.ACCEPTED, ConditionType.RENDEZVOUS_READY):
        assert condition(found, type_) == ("False", "SecretNotAllowed")


def finished(view: RendezvousView) -> tuple[Action, ...]:
    status = make_status(
        ConditionType.SUCCEEDED, rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint=SHARED.endpoint)
    ).model_copy(update={"completion_time": NOW})
    return ask(make_job(status=status), settings=SHARED, rendezvous=view).actions


def test_user_secret_and_keys_are_removed_when_the_run_is_over() -> None:
    actions = finished(PUBLISHED)
    assert [type(action) for action in actions] == [DeleteCertificates, ClearRun]
    assert [action.name for action in actions if isinstance(action, DeleteCertificates)] == [RUN_SECRET]
    assert not finished(make_view()), "nothing is left"
