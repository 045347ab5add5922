"""A job's own etcd with three members: what it consists of, and what happens to a member that is lost."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import ConditionType, ElasticJob, RendezvousStatus
from elasticjob_operator.node_state import NodeHealth
from elasticjob_operator.planning import CreateCertificates, CreateObject, CreatePod, DeleteObject, DeletePod, Plan
from elasticjob_operator.policies.rendezvous import rendezvous_of, unknown_outcome, with_store
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, Kind, Pod

from tests.unit.operator.builders import (
    NOW,
    UID,
    make_heartbeat,
    make_job,
    make_node,
    make_plan,
    make_pod,
    make_status,
    make_view,
)
from tests.unit.operator.planning.plans import ADMITTED, ask, environment, follow, made, owned, trained
from tests.unit.operator.tables import table

ETCD = {
    "rendezvous": {"type": "Dedicated", "etcd": {"members": 3, "storage": {"size": "2Gi", "storageClassName": "fast"}}}
}
OWN = Settings()
HOSTS = ("digits-etcd.ml.svc", *(f"digits-etcd-{index}.digits-etcd-peers.ml.svc" for index in range(3)))
ENDPOINT = ",".join(f"https://{host}:2379" for host in HOSTS)


def created(found: Plan) -> dict[tuple[Kind, str], Any]:
    return {(action.kind, action.body["metadata"]["name"]): action.body for action in made(found, CreateObject)}


def member(index: int, node: str = "", **state: Any) -> Pod:
    pod = make_pod(0, node=node, **state)
    return dataclasses.replace(pod, name=f"digits-etcd-{index}", uid=f"e{index}", component="etcd", index=-1)


def with_three(job: ElasticJob) -> ElasticJob:
    """With the status of a job that has an etcd with three members."""
    known = RendezvousStatus(id=f"{UID}-1", backend="etcd-v3", endpoint=ENDPOINT, store_generation=1)
    return job.model_copy(update={"status": job.status.model_copy(update={"rendezvous": known})})


def test_three_members_get_volumes_names_and_a_disruption_budget() -> None:
    found = ask(make_job(spec=ETCD), admission=ADMITTED, settings=OWN)
    objects = created(found)
    spec = objects[Kind.STATEFUL_SET, "digits-etcd"]["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (3, "digits-etcd-peers")
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == f"data-{UID[:8]}-1"
    assert claim["spec"]["resources"]["requests"] == {"storage": "2Gi"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert objects[Kind.SERVICE, "digits-etcd-peers"]["spec"]["publishNotReadyAddresses"]
    assert "publishNotReadyAddresses" not in objects[Kind.SERVICE, "digits-etcd"]["spec"], "only those with a quorum"
    budget = objects[Kind.DISRUPTION_BUDGET, "digits-etcd"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_members_and_clients_know_every_member_by_a_name_in_its_certificate() -> None:
    found = ask(make_job(spec=ETCD), admission=ADMITTED, settings=OWN)
    (secret,) = made(found, CreateCertificates)
    assert secret.dns_names == ("digits-etcd.ml.svc", "*.digits-etcd.ml.svc", "*.digits-etcd-peers.ml.svc")
    assert secret.peer_names == ("*.digits-etcd-peers.ml.svc",)
    variables = environment(found)
    assert variables["PET_RDZV_ENDPOINT"] == ENDPOINT
    (container,) = created(found)[Kind.STATEFUL_SET, "digits-etcd"]["spec"]["template"]["spec"]["containers"]
    flags = dict(flag.split("=", 1) for flag in container["command"][1:])
    assert flags["--initial-cluster"] == ",".join(f"{host.partition('.')[0]}=https://{host}:2380" for host in HOSTS[1:])
    assert flags["--initial-advertise-peer-urls"] == "https://$(ETCD_MEMBER).digits-etcd-peers.ml.svc:2380"
    assert flags["--peer-client-cert-auth"] == "true"


def test_without_tls_the_members_use_none_either() -> None:
    found = ask(make_job(spec=ETCD), admission=ADMITTED, settings=Settings(etcd_tls=False))
    (container,) = created(found)[Kind.STATEFUL_SET, "digits-etcd"]["spec"]["template"]["spec"]["containers"]
    assert "--listen-peer-urls=http://0.0.0.0:2380" in container["command"]
    assert not [flag for flag in container["command"] if "https://" in flag or "cert" in flag]


@pytest.mark.parametrize("etcd", [{}, {"members": 1}])
def test_a_single_member_has_neither_volume_nor_budget(etcd: dict[str, Any]) -> None:
    found = ask(make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": etcd}}), admission=ADMITTED, settings=OWN)
    objects = created(found)
    assert objects[Kind.STATEFUL_SET, "digits-etcd"]["spec"]["replicas"] == 1
    assert "volumeClaimTemplates" not in objects[Kind.STATEFUL_SET, "digits-etcd"]["spec"]
    assert not {kind for kind, _ in objects} & {Kind.DISRUPTION_BUDGET}
    assert (Kind.SERVICE, "digits-etcd-peers") not in objects


def test_members_prefer_nodes_without_another_member() -> None:
    found = ask(make_job(spec=ETCD), admission=ADMITTED, settings=OWN)
    pod = created(found)[Kind.STATEFUL_SET, "digits-etcd"]["spec"]["template"]["spec"]
    avoided = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    weights = {
        item["podAffinityTerm"]["labelSelector"]["matchLabels"]["elasticjob.dev/component"]: item["weight"]
        for item in avoided
    }
    assert weights == {"etcd": 100, "worker": 50}


def test_nothing_is_patched_or_deleted_once_everything_is_there() -> None:
    job = make_job(spec=ETCD)
    first = ask(job, admission=ADMITTED, settings=OWN)
    again = ask(follow(job, first), admission=ADMITTED, settings=OWN, objects=owned(first))
    assert not [action for action in again.actions if not isinstance(action, CreatePod)]


def test_another_default_size_in_a_new_release_leaves_existing_volumes_alone() -> None:
    """The API server would reject the change."""
    job = make_job(spec=ETCD)
    first = ask(job, admission=ADMITTED, settings=OWN)
    other = make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": {"members": 3, "storage": {"size": "9Gi"}}}})
    again = ask(follow(other, first), admission=ADMITTED, settings=OWN, objects=owned(first))
    assert not [action for action in again.actions if not isinstance(action, CreatePod)]


def test_a_finished_job_keeps_none_of_it() -> None:
    """The StatefulSet's controller deletes the volumes."""
    objects = owned(ask(make_job(spec=ETCD), admission=ADMITTED, settings=OWN))
    status = make_status(ConditionType.SUCCEEDED, completion_time=NOW)
    found = ask(with_three(make_job(spec=ETCD, status=status)), objects=objects, settings=OWN)
    deleted = {(action.kind, action.name) for action in made(found, DeleteObject)}
    assert deleted == set(objects)


@pytest.mark.parametrize("members", [1, 3])
def test_the_run_of_status_stays_managed_when_the_number_of_members_changes(members: int) -> None:
    """While the job is being suspended, its etcd is still the one with the earlier number."""
    etcd = {"members": members, "storage": {}} if members == 3 else {"members": members}
    changed = make_job(spec={"rendezvous": {"type": "Dedicated", "etcd": etcd}}, status=make_status())
    found = rendezvous_of(with_three(changed), OWN)
    assert (found.managed, found.several, found.tls, found.endpoint) == (True, True, True, ENDPOINT)


@pytest.mark.parametrize("pods", [[], [("e0", False)], [("e0", True), ("e1", False)], [("e9", False)]])
def test_members_that_come_and_go_are_one_etcd(pods: list[tuple[str, bool]]) -> None:
    job = with_three(make_job(spec=ETCD))
    etcd = [(dataclasses.replace(make_pod(), uid=uid), lost) for uid, lost in pods]
    found = with_store(rendezvous_of(job, OWN), job.status.rendezvous, etcd)
    assert (found.store_generation, found.store_pod) == (1, "")


@pytest.mark.parametrize(("there", "held"), [([], False), ([member(1)], True)])
def test_any_member_knows_how_the_job_ended(there: list[Pod], held: bool) -> None:
    job = with_three(make_job(spec=ETCD, status=make_status(round=3, start_time=NOW)))
    found = unknown_outcome(job, rendezvous_of(job, OWN), make_view(Connectivity.CONNECTING), there)
    assert (found is not None) is held


@table(
    "health, gone, forced",
    {
        "silent: it may still run, and the others go on without it": (NodeHealth.SILENT, False, []),
        "its node is gone": (NodeHealth.SILENT, True, ["digits-etcd-2"]),
    },
)
def test_a_member_is_replaced_only_once_it_has_certainly_stopped(
    health: NodeHealth, gone: bool, forced: list[str]
) -> None:
    nodes = {"good": make_node("good")} | ({} if gone else {"bad": make_node("bad", health, since=-60)})
    heartbeats = {"bad": make_heartbeat(exists=False) if gone else make_heartbeat()}
    pods = [make_pod(index, node="good") for index in range(4)]
    etcd = [member(0, "good"), member(1, "good"), member(2, "bad")]
    job = with_three(trained(spec=ETCD))
    found = ask(
        job, *pods, *etcd, nodes=nodes, heartbeats=heartbeats, settings=OWN, rendezvous=make_view(plan=make_plan())
    )
    deleted = [(action.name, action.force) for action in made(found, DeletePod)]
    assert deleted == [(name, True) for name in forced]


def test_a_member_that_returns_does_not_interrupt_the_operators_watch() -> None:
    job = with_three(trained(spec=ETCD))
    pods = [make_pod(index) for index in range(4)]
    targets = set()
    for ready in ({0, 1}, {0, 1, 2}, {2}):
        etcd = [dataclasses.replace(member(index), ready=index in ready) for index in range(3)]
        targets.add(ask(job, *pods, *etcd, settings=OWN, rendezvous=make_view(plan=make_plan())).target)
    assert len(targets) == 1
