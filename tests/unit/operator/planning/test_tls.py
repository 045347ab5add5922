"""The certificates of a job's own etcd: when they are created, mounted and deleted."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
import pytest
from elasticjob_api import ConditionType, RendezvousStatus
from elasticjob_operator.names import CERTIFICATES_PATH, CERTIFICATES_VOLUME
from elasticjob_operator.planning import (
    CreateCertificates,
    CreateObject,
    CreatePod,
    DeleteCertificates,
    DeleteObject,
    Plan,
)
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Kind, OwnedObject, PodPhase, Rejection

from tests.unit.operator.builders import NOW, UID, at, make_job, make_pod, make_status
from tests.unit.operator.planning.plans import ADMITTED, ask, condition, follow, kinds, owned

TLS, PLAIN = Settings(), Settings(etcd_tls=False)
SECRET = f"digits-etcd-{UID[:8]}-1"


def an_etcd(secret: str) -> dict[tuple[Kind, str], OwnedObject]:
    body = etcd_stateful_set(make_job(), "etcd:1", secret=secret)
    found = OwnedObject(
        kind=Kind.STATEFUL_SET, name="digits-etcd", uid="o", owner_uid=UID, terminating=False, json=orjson.dumps(body)
    )
    return {(Kind.STATEFUL_SET, "digits-etcd"): found}


def created(found: Plan, kind: type[Any]) -> list[Any]:
    return [each for each in found.actions if isinstance(each, kind)]


def secrets_mounted(found: Plan) -> set[str]:
    """By the worker pods that are created."""
    volumes = [volume for each in created(found, CreatePod) for volume in each.body["spec"].get("volumes") or []]
    return {each["secret"]["secretName"] for each in volumes if each["name"] == CERTIFICATES_VOLUME}


def test_a_new_job_gets_certificates_before_anything_else() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=TLS)
    (made,) = created(found, CreateCertificates)
    assert made.body["metadata"]["name"] == SECRET
    assert made.body["metadata"]["ownerReferences"][0]["uid"] == UID
    assert "data" not in made.body
    assert made.dns_names == ("digits-etcd.ml.svc", "*.digits-etcd.ml.svc")
    assert secrets_mounted(found) == {SECRET}
    variables = {each["name"]: each.get("value") for each in _environment(found)}
    assert variables["PET_RDZV_ENDPOINT"] == "https://digits-etcd.ml.svc:2379"
    assert variables["PET_RDZV_CONF"] == (
        f"cacert={CERTIFICATES_PATH}/ca.crt,cert={CERTIFICATES_PATH}/worker.crt,key={CERTIFICATES_PATH}/worker.key"
    )


def _environment(found: Plan) -> list[dict[str, Any]]:
    environment: list[dict[str, Any]] = created(found, CreatePod)[0].body["spec"]["containers"][0]["env"]
    return environment


def test_no_certificates_are_made_once_the_etcd_exists() -> None:
    """Its Secret was created before it, so an operator that restarts makes none again."""
    first = ask(make_job(), admission=ADMITTED, settings=TLS)
    again = ask(follow(make_job(), first), admission=ADMITTED, settings=TLS, objects=owned(first))
    assert not created(again, CreateCertificates)
    assert secrets_mounted(again) == {SECRET}


def test_an_etcd_that_someone_deleted_comes_back_with_its_certificates() -> None:
    """The agents of the run trust no others."""
    status = make_status(rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="https://digits-etcd.ml.svc:2379"))
    found = ask(make_job(status=status), admission=ADMITTED, settings=PLAIN)
    (made,) = created(found, CreateCertificates)
    (etcd,) = [each for each in created(found, CreateObject) if each.kind is Kind.STATEFUL_SET]
    assert made.body["metadata"]["name"] == SECRET
    assert _secret_of(etcd.body) == SECRET


def _secret_of(body: dict[str, Any]) -> str:
    volumes = body["spec"]["template"]["spec"]["volumes"]
    return next((str(each["secret"]["secretName"]) for each in volumes if each["name"] == CERTIFICATES_VOLUME), "")


def test_a_run_without_tls_stays_without_it_after_an_upgrade() -> None:
    """Even if the earlier operator was killed before it wrote the status."""
    for status in (None, make_status(rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="digits-etcd.ml.svc:2379"))):
        found = ask(make_job(status=status), admission=ADMITTED, settings=TLS, objects=an_etcd(""))
        assert not created(found, CreateCertificates)
        assert not secrets_mounted(found)
        assert found.status.rendezvous is not None
        assert found.status.rendezvous.endpoint == "digits-etcd.ml.svc:2379"


def test_a_run_with_tls_keeps_it_when_tls_is_turned_off() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=PLAIN, objects=an_etcd(SECRET))
    assert secrets_mounted(found) == {SECRET}
    assert found.target is not None
    assert found.target.tls


def test_a_new_run_with_the_etcd_of_the_last_one_uses_its_certificates() -> None:
    """The job was changed and resumed before its pods were gone: the run is new, the etcd is not."""
    found = ask(make_job(), admission=ADMITTED, settings=TLS, objects=an_etcd("digits-etcd-of-run-0"))
    assert secrets_mounted(found) == {"digits-etcd-of-run-0"}


def test_nothing_is_created_while_certificates_are_refused() -> None:
    """Never a silent fall-back to an etcd without TLS."""
    refused = Rejection(kinds=frozenset({"Secret"}), message="secrets is forbidden", retry_at=at(10))
    found = ask(make_job(), admission=ADMITTED, settings=TLS, rejection=refused)
    assert not kinds(found)
    assert condition(found, ConditionType.RUNNING) == ("False", "ObjectRejected")
    running = found.status.condition(ConditionType.RUNNING)
    assert running is not None
    assert "secrets is forbidden" in running.message
    later = ask(make_job(), admission=ADMITTED, settings=TLS, rejection=refused, seconds=10)
    assert created(later, CreateCertificates)


def test_certificates_are_deleted_with_the_etcd() -> None:
    status = make_status(
        ConditionType.SUCCEEDED, rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="https://digits-etcd.ml.svc:2379")
    )
    job = make_job(status=status.model_copy(update={"completion_time": NOW}))
    found = ask(job, settings=TLS, objects=an_etcd(SECRET))
    assert [each.name for each in created(found, DeleteCertificates)] == [SECRET]
    assert [each.name for each in created(found, DeleteObject)] == ["digits-etcd"]
    for other in ("another", "digits-etcd-ffffffff-1"):
        found = ask(job, settings=TLS, objects=an_etcd(other))
        assert not created(found, DeleteCertificates), "a user changed the StatefulSet"
        assert [each.name for each in created(found, DeleteObject)] == ["digits-etcd"]
    gone = {key: dataclasses.replace(each, terminating=True) for key, each in an_etcd(SECRET).items()}
    assert not kinds(ask(job, settings=TLS, objects=gone))


@pytest.mark.parametrize(("seconds", "made"), [(20, False), (40, True)])
def test_a_deleted_secret_of_certificates_is_created_again(seconds: float, made: bool) -> None:
    """A pod that waits for its volume does not say for which."""
    waiting = dataclasses.replace(make_pod(0, PodPhase.PENDING), scheduled_at=NOW)
    found = ask(make_job(), waiting, settings=TLS, objects=an_etcd(SECRET), seconds=seconds)
    assert [each.body["metadata"]["name"] for each in created(found, CreateCertificates)] == [SECRET] * made
