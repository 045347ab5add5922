"""The certificates of a job's own etcd: when they are created, mounted and deleted."""

from __future__ import annotations

import dataclasses
from typing import Any

from elasticjob_api import ConditionType, ElasticJob, Reason, RendezvousStatus
from elasticjob_operator.names import CERTIFICATES_PATH, CERTIFICATES_VOLUME
from elasticjob_operator.planning import (
    CreateCertificates,
    CreateObject,
    CreatePod,
    DeleteCertificates,
    DeleteObject,
    DeletePod,
    Plan,
)
from elasticjob_operator.resources.etcd import etcd_stateful_set
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Explanation, Kind, OwnedObject, Pod, PodPhase, Rejection

from tests.unit.operator.builders import NOW, UID, at, make_job, make_plan, make_pod, make_status, make_view
from tests.unit.operator.planning.plans import (
    ADMITTED,
    ask,
    condition,
    environment,
    follow,
    kinds,
    made,
    mounted,
    owned,
    owned_object,
    rendezvous_in,
    said,
    target_of,
    trained,
)
from tests.unit.operator.tables import table

TLS, PLAIN = Settings(), Settings(etcd_tls=False)
SECRET = f"digits-etcd-{UID[:8]}-1"


def an_etcd(secret: str) -> dict[tuple[Kind, str], OwnedObject]:
    body = etcd_stateful_set(make_job(), "etcd:1", secret=secret)
    return {(Kind.STATEFUL_SET, "digits-etcd"): owned_object(Kind.STATEFUL_SET, body)}


def test_a_new_job_gets_certificates_before_anything_else() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=TLS)
    (secret,) = made(found, CreateCertificates)
    assert secret.body["metadata"]["name"] == SECRET
    assert secret.body["metadata"]["ownerReferences"][0]["uid"] == UID
    assert "data" not in secret.body
    assert secret.dns_names == ("digits-etcd.ml.svc", "*.digits-etcd.ml.svc")
    assert mounted(found) == {SECRET}
    variables = environment(found)
    assert variables["PET_RDZV_ENDPOINT"] == "https://digits-etcd.ml.svc:2379"
    assert variables["PET_RDZV_CONF"] == (
        f"cacert={CERTIFICATES_PATH}/ca.crt,cert={CERTIFICATES_PATH}/worker.crt,key={CERTIFICATES_PATH}/worker.key"
    )


def test_no_certificates_are_made_once_the_etcd_exists() -> None:
    """Its Secret was created before it, so an operator that restarts makes none again."""
    first = ask(make_job(), admission=ADMITTED, settings=TLS)
    again = ask(follow(make_job(), first), admission=ADMITTED, settings=TLS, objects=owned(first))
    assert not made(again, CreateCertificates)
    assert mounted(again) == {SECRET}


def test_an_etcd_that_someone_deleted_comes_back_with_its_certificates() -> None:
    """The agents of the run trust no others."""
    status = make_status(rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="https://digits-etcd.ml.svc:2379"))
    found = ask(make_job(status=status), admission=ADMITTED, settings=PLAIN)
    (secret,) = made(found, CreateCertificates)
    (etcd,) = [action for action in made(found, CreateObject) if action.kind is Kind.STATEFUL_SET]
    assert secret.body["metadata"]["name"] == SECRET
    assert _secret_of(etcd.body) == SECRET


def _secret_of(body: dict[str, Any]) -> str:
    volumes = body["spec"]["template"]["spec"]["volumes"]
    return next(
        (str(volume["secret"]["secretName"]) for volume in volumes if volume["name"] == CERTIFICATES_VOLUME), ""
    )


def test_a_run_without_tls_stays_without_it_after_an_upgrade() -> None:
    """Even if the earlier operator was killed before it wrote the status."""
    for status in (None, make_status(rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="digits-etcd.ml.svc:2379"))):
        found = ask(make_job(status=status), admission=ADMITTED, settings=TLS, objects=an_etcd(""))
        assert not made(found, CreateCertificates)
        assert not mounted(found)
        assert rendezvous_in(found).endpoint == "digits-etcd.ml.svc:2379"


def test_a_run_with_tls_keeps_it_when_tls_is_turned_off() -> None:
    found = ask(make_job(), admission=ADMITTED, settings=PLAIN, objects=an_etcd(SECRET))
    assert mounted(found) == {SECRET}
    assert target_of(found).tls


def test_a_new_run_with_the_etcd_of_the_last_one_uses_its_certificates() -> None:
    """The job was changed and resumed before its pods were gone: the run is new, the etcd is not."""
    found = ask(make_job(), admission=ADMITTED, settings=TLS, objects=an_etcd("digits-etcd-of-run-0"))
    assert mounted(found) == {"digits-etcd-of-run-0"}


def test_nothing_is_created_while_certificates_are_refused() -> None:
    """Never a silent fall-back to an etcd without TLS."""
    refused = Rejection(kinds=frozenset({"Secret"}), message="secrets is forbidden", retry_at=at(10))
    found = ask(make_job(), admission=ADMITTED, settings=TLS, rejection=refused)
    assert not kinds(found)
    assert condition(found, ConditionType.RUNNING) == ("False", "ObjectRejected")
    assert "secrets is forbidden" in said(found, ConditionType.RUNNING)
    later = ask(make_job(), admission=ADMITTED, settings=TLS, rejection=refused, seconds=10)
    assert made(later, CreateCertificates)


def test_certificates_are_deleted_with_the_etcd() -> None:
    status = make_status(
        ConditionType.SUCCEEDED, rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="https://digits-etcd.ml.svc:2379")
    )
    job = make_job(status=status.model_copy(update={"completion_time": NOW}))
    found = ask(job, settings=TLS, objects=an_etcd(SECRET))
    assert [action.name for action in made(found, DeleteCertificates)] == [SECRET]
    assert [action.name for action in made(found, DeleteObject)] == ["digits-etcd"]
    for other in ("another", "digits-etcd-ffffffff-1"):
        found = ask(job, settings=TLS, objects=an_etcd(other))
        assert not made(found, DeleteCertificates), "a user changed the StatefulSet"
        assert [action.name for action in made(found, DeleteObject)] == ["digits-etcd"]
    gone = {key: dataclasses.replace(item, terminating=True) for key, item in an_etcd(SECRET).items()}
    assert not kinds(ask(job, settings=TLS, objects=gone))


MISSING = f'FailedMount: MountVolume.SetUp failed for volume "v" : secret "{SECRET}" not found'
ETCD_POD = dataclasses.replace(
    make_pod(phase=PodPhase.PENDING, created=0), name="digits-etcd-0", component="etcd", index=-1
)
GROUP = (make_pod(0), make_pod(1, PodPhase.PENDING, created=0))


def training_without_secret(*pods: Pod, told: str = MISSING, job: ElasticJob | None = None, **world: Any) -> Plan:
    """`told`: by the kubelet, of worker pod 1 and of etcd's."""
    about = Explanation(message=told, warning=True, at=at(9), first_read_at=at(9), read_at=at(9))
    answers = {("Pod", name): about for name in ("digits-worker-1", "digits-etcd-0")}
    world = {"objects": an_etcd(SECRET), "rendezvous": make_view(plan=make_plan(2)), **world}
    return ask(
        job or trained(2, status=RUNNING),
        *pods,
        admission=ADMITTED,
        settings=TLS,
        seconds=10,
        explanations=answers,
        **world,
    )


RUNNING = make_status(
    ConditionType.ACCEPTED,
    ConditionType.RUNNING,
    round=3,
    restarts=1,
    start_time=NOW,
    rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="https://digits-etcd.ml.svc:2379"),
)


@table("pods", {"a worker pod": GROUP, "etcd": (GROUP[0], ETCD_POD)})
def test_a_deleted_secret_replaces_etcd_and_all_worker_pods_for_free(pods: tuple[Pod, ...]) -> None:
    """Whichever pod cannot start without it. New certificates never meet a worker pod with the old ones."""
    found = training_without_secret(*pods)
    workers = [pod.name for pod in pods if pod.index >= 0]
    assert [action.name for action in made(found, DeletePod)] == workers
    assert [action.name for action in made(found, DeleteObject)] == ["digits-etcd"]
    assert not made(found, CreateCertificates)
    assert not made(found, CreatePod)
    assert rendezvous_in(found).id == f"{UID}-2"
    assert found.status.restarts.total == 1
    (event,) = [item for item in found.events if item.reason is Reason.CERTIFICATES_DELETED]
    assert event.warning
    assert f"Secret {SECRET} was deleted" in event.message


def test_no_second_worker_group_is_created_before_the_first_has_ended() -> None:
    """Even though the new etcd has started."""
    job = follow(trained(2), training_without_secret(*GROUP))
    ending = [dataclasses.replace(pod, deletion_timestamp=at(40)) for pod in GROUP]
    found = training_without_secret(*ending, job=job, objects={}, rendezvous=make_view())
    (secret,) = made(found, CreateCertificates)
    assert secret.body["metadata"]["name"] == f"digits-etcd-{UID[:8]}-2"
    assert not made(found, CreatePod)
    assert not [event for event in found.events if event.reason is Reason.CERTIFICATES_DELETED]
    after = training_without_secret(job=job, objects={}, rendezvous=make_view())
    assert mounted(after) == {f"digits-etcd-{UID[:8]}-2"}


def test_a_plan_that_is_repeated_starts_no_further_run() -> None:
    """The StatefulSet could not be deleted yet."""
    job = follow(trained(2), training_without_secret(*GROUP))
    again = training_without_secret(*GROUP, job=job)
    assert rendezvous_in(again).id == f"{UID}-2"
    assert [action.name for action in made(again, DeleteObject)] == ["digits-etcd"]
    assert not made(again, CreatePod)


@table(
    "told, etcd",
    {
        "another Secret": ('FailedMount: secret "mine" not found', SECRET),
        "a user changed the StatefulSet": (MISSING, "mine"),
        "Events cannot be read": ("", SECRET),
        "no TLS": (MISSING, ""),
    },
)
def test_another_missing_secret_restarts_nothing(told: str, etcd: str) -> None:
    found = training_without_secret(*GROUP, told=told, objects=an_etcd(etcd))
    assert not made(found, DeletePod)
    assert not made(found, DeleteCertificates)
    assert not made(found, CreateCertificates)


def test_an_etcd_without_worker_pods_gets_a_new_secret_of_the_same_name() -> None:
    found = training_without_secret(ETCD_POD, job=make_job())
    assert [action.name for action in made(found, DeleteCertificates)] == [SECRET]
    assert [action.name for action in made(found, DeleteObject)] == ["digits-etcd"]
    assert not made(found, CreatePod)


def test_what_was_said_of_the_last_secret_does_not_condemn_the_next_one_of_that_name() -> None:
    """The pod of the etcd before is still listed."""
    new = {key: dataclasses.replace(item, created_at=at(9.5)) for key, item in an_etcd(SECRET).items()}
    found = training_without_secret(ETCD_POD, job=make_job(), objects=new)
    assert not made(found, DeleteCertificates)
    assert not made(found, DeleteObject)


def test_no_certificates_are_made_for_worker_pods_that_have_others() -> None:
    """Secret and StatefulSet were deleted together: whether the Secret exists is known once etcd's pod cannot start."""
    found = ask(trained(2, status=RUNNING), *GROUP, admission=ADMITTED, settings=TLS)
    assert not made(found, CreateCertificates)
    (etcd,) = [action for action in made(found, CreateObject) if action.kind is Kind.STATEFUL_SET]
    assert _secret_of(etcd.body) == SECRET


def test_a_suspended_job_starts_no_run_without_its_secret() -> None:
    job = make_job(spec={"suspend": True}, status=RUNNING)
    found = training_without_secret(*GROUP, job=job)
    assert rendezvous_in(found).id == f"{UID}-1"
