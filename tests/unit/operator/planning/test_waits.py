"""Every wait that a job can be in is told as what it is: the object, its owner or node, since when, and the remedy, in
a condition, and in a Warning Event without a time where someone may have to act."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from elasticjob_api import (
    BLOCKING_REASONS,
    MESSAGES,
    REMEDY,
    ConditionType,
    ElasticJob,
    OnPartition,
    Reason,
    RendezvousStatus,
)
from elasticjob_operator.node_state import NodeHealth
from elasticjob_operator.planning import Plan, ReadEvents
from elasticjob_operator.planning.events import repeatable
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.settings import EtcdTier, EtcdTiers, Settings
from elasticjob_operator.state import (
    Blocked,
    Connectivity,
    ContainerEnd,
    Explanation,
    Kind,
    OwnedObject,
    Pod,
    PodPhase,
    Rejection,
    TierView,
)
from elasticjob_runtime.contract import UnreadyValue

from tests.unit.operator.builders import (
    NOW,
    TEMPLATE,
    UID,
    at,
    failed_pod,
    make_failure,
    make_job,
    make_node,
    make_plan,
    make_pod,
    make_status,
    make_view,
)
from tests.unit.operator.planning.plans import ADMITTED, ask, made, owned_object, trained
from tests.unit.operator.tables import table

RUNNING, READY, ACCEPTED = ConditionType.RUNNING, ConditionType.RENDEZVOUS_READY, ConditionType.ACCEPTED
SUSPENDED = ConditionType.SUSPENDED
OWN_ETCD = Settings(etcd_tls=False)
IN_TIERS = Settings(
    etcd_tiers=EtcdTiers(tiers=(EtcdTier(name="t0", endpoint="https://t0:2379"),), max_runs=1), ca_namespace="ops"
)
IN_REMOVED_TIER = make_status(
    ACCEPTED, RUNNING, round=1, rendezvous=RendezvousStatus(id=f"{UID}-1", endpoint="https://t0:2379", tier="t0")
)
HASTY = {"spec": {**TEMPLATE["spec"], "terminationGracePeriodSeconds": 5}}
HASTY_JOB = make_job(template=HASTY)
RESTRICTED = Settings.from_environment({"ELASTICJOB_ALLOWED_ENDPOINTS": "c:1", "ELASTICJOB_ETCD_TLS": "false"})
TIME = re.compile(r"\d{4}-\d\d-\d\dT")
PROVISIONING = "ExternalProvisioning: Waiting for a volume to be created by the provisioner 'example.com/none'"
UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."


def pending(index: int = 0, reason: str = "", message: str = "", **fields: Any) -> Pod:
    about = {name: fields.pop(name) for name in ("claims", "runtime", "since") if name in fields}
    blocked = Blocked(reason=reason, message=message, **about) if reason or about else None
    return make_pod(index, PodPhase.PENDING, blocked=blocked, created=-20, **fields)


def etcd_pod(reason: str = "", message: str = "", **fields: Any) -> Pod:
    pod = pending(0, reason, message, **fields)
    return dataclasses.replace(pod, name="digits-etcd-0", uid="etcd-0", component="etcd", index=-1)


def unready_etcd(reason: str = "it is not ready", message: str = "") -> Pod:
    return dataclasses.replace(etcd_pod(reason, message, since=at(-60), node="n2"), phase=PodPhase.RUNNING)


def stateful_set(replicas: int = 1) -> dict[tuple[Kind, str], OwnedObject]:
    body = {"metadata": {"name": "digits-etcd"}, "spec": {"replicas": replicas}}
    return {(Kind.STATEFUL_SET, "digits-etcd"): owned_object(Kind.STATEFUL_SET, body, created_at=at(-30))}


def says(kind: str, name: str, message: str, *, warning: bool = True) -> dict[str, Any]:
    """The answer to a read of Events."""
    known = Explanation(message=message, warning=warning, at=at(-5), first_read_at=at(-9), read_at=at(-1))
    return {"explanations": {(kind, name): known}}


def own_etcd(*pods: Pod, **world: Any) -> Plan:
    world = {"admission": ADMITTED, "rendezvous": make_view(Connectivity.UNREACHABLE, error="refused"), **world}
    return ask(make_job(), *pods, settings=OWN_ETCD, objects=stateful_set(), **world)


def starting(*pods: Pod, job: ElasticJob | None = None, **world: Any) -> Plan:
    return ask(job or make_job(), *pods, **{"admission": ADMITTED, "rendezvous": make_view(), **world})


def unready(*names: str, failure: str = "") -> UnreadyValue:
    return UnreadyValue(members=list(names), since=at(-100).timestamp(), failure=failure)


def in_queue(queue: str) -> ElasticJob:
    job = make_job(spec={"suspend": True})
    metadata = job.metadata.model_copy(update={"labels": {"kueue.x-k8s.io/queue-name": queue}})
    return job.model_copy(update={"metadata": metadata})


def queue_in_template(queue: str) -> ElasticJob:
    template = make_job().spec.workers.template
    return make_job(workers={"template": {**template, "metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}}}})


def rejected(*kinds: str, message: str) -> dict[str, Any]:
    return {"rejection": Rejection(kinds=frozenset(kinds), message=message, retry_at=at(9), since=at(-60))}


@dataclasses.dataclass(frozen=True)
class Told:
    """The reason and the message of a condition in a plan."""

    reason: Reason
    text: str
    """What the message has, in this order."""
    plan: Plan
    type_: ConditionType = RUNNING


QUOTA = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8, limited: 8"
CONSISTENT = {"rendezvous": {"onPartition": OnPartition.CONSISTENT}}
SECRETIVE = make_job(spec={"rendezvous": {"type": "External", "endpoint": "e:1", "secretName": "mine"}})
INIT_END = ContainerEnd(exit_code=3, reason="Error", message="no such bucket", finished_at=at(0), container="fetch")
CRASH = make_failure(1, round_number=2, message="ImportError: no module tqdm")
CRASHED = make_view(plan=make_plan(2), failure=dataclasses.replace(CRASH, restart_delay=60.0))

WAITS: dict[str, Told] = {
    "a worker pod has no node": Told(
        Reason.UNSCHEDULABLE,
        "Pod digits-worker-1 … 3 Insufficient nvidia.com/gpu … Since 2026-01-01T11:59:40Z … --replicas 2",
        starting(pending(1, "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")),
    ),
    "its claim has no volume": Told(
        Reason.CLAIM_UNBOUND,
        'PersistentVolumeClaim data of Pod digits-worker-0 … "fast" not found … Since … kubectl describe pvc data',
        starting(
            pending(0, "Unschedulable", UNBOUND, claims=("data",)),
            **says("PersistentVolumeClaim", "data", 'ProvisioningFailed: storageclass "fast" not found'),
        ),
    ),
    "its claim waits for a provisioner, of which the scheduler says nothing": Told(
        Reason.CLAIM_UNBOUND,
        "PersistentVolumeClaim checkpoints of Pod digits-worker-0 … ExternalProvisioning: Waiting for a volume … "
        "kubectl describe pvc checkpoints",
        starting(
            pending(0, claims=("data", "checkpoints")),
            **says("PersistentVolumeClaim", "checkpoints", PROVISIONING, warning=False),
        ),
    ),
    "its claim is being deleted": Told(
        Reason.CLAIM_UNBOUND,
        "PersistentVolumeClaim ck … is being deleted … suspend the job … create it again",
        starting(pending(0, "Unschedulable", 'persistentvolumeclaim "ck" is being deleted. not found', claims=("ck",))),
    ),
    "its claim does not exist": Told(
        Reason.CLAIM_UNBOUND,
        "PersistentVolumeClaim mine of Pod digits-worker-0 … not found … Since … create the claim",
        starting(pending(0, "Unschedulable", 'persistentvolumeclaim "mine" not found', claims=("other", "mine"))),
    ),
    "its image cannot be pulled": Told(
        Reason.IMAGE_UNAVAILABLE,
        "Pod digits-worker-0 on node n1 … no such tag … Since … imagePullSecrets",
        starting(pending(0, "ImagePullBackOff", "no such tag", node="n1")),
    ),
    "a Secret of its environment is missing": Told(
        Reason.CONTAINER_CONFIG_ERROR,
        'Pod digits-worker-0 on node n1 … secret "key" not found … Since … create the missing',
        starting(pending(0, "CreateContainerConfigError", 'secret "key" not found', node="n1")),
    ),
    "a volume of it cannot be mounted": Told(
        Reason.CONTAINER_CONFIG_ERROR,
        'Pod digits-worker-0 on node n1 … FailedMount: MountVolume.SetUp failed: secret "key" … Since … create',
        starting(
            pending(0, node="n1"),
            **says("Pod", "digits-worker-0", 'FailedMount: MountVolume.SetUp failed: secret "key" not found'),
        ),
    ),
    "the runtime's image cannot be pulled": Told(
        Reason.RUNTIME_UNAVAILABLE,
        "Pod digits-worker-0 on node n1 … no runtime … Since … runtime.repository",
        starting(pending(0, "ErrImagePull", "no runtime", node="n1", runtime=True)),
    ),
    "an init container is running": Told(
        Reason.WAITING_FOR_WORKERS,
        "Pod digits-worker-0 on node n1 … init container fetch is running … Since 2026-01-01T11:00:00Z",
        starting(pending(0, "init container fetch is running", node="n1", since=at(-3600))),
    ),
    "a sidecar ends again and again": Told(
        Reason.CONTAINER_CONFIG_ERROR,
        "Pod digits-worker-0 on node n1 … container=proxy … Since … kubectl logs digits-worker-0 -n ml --all-",
        starting(pending(0, "CrashLoopBackOff", "back-off 40s restarting failed container=proxy", node="n1")),
    ),
    "an init container fails again and again": Told(
        Reason.WORKER_FAILED,
        "digits-worker-1 failed … init container fetch: exit code 3 … restart 4 of at most 9 … "
        "Its replacement is created at 2026-01-01T12:00: … it ended at 2026-01-01T12:00:00Z … "
        "kubectl logs digits-worker-1 -n ml -c fetch",
        ask(
            make_job(status=make_status(ConditionType.ACCEPTED, restarts=3), max_restarts=9),
            dataclasses.replace(failed_pod(1, created=-9), end=None, init_end=INIT_END),
            admission=ADMITTED,
            rendezvous=make_view(),
        ),
    ),
    "a pod of an earlier run does not end": Told(
        Reason.WAITING_FOR_WORKERS,
        "Pod digits-worker-2 on node n9 … of an earlier run … Since 2026-01-01T11:51:40Z … --force --grace-period=0",
        starting(make_pod(2, run=0, node="n9", deletion_timestamp=-500)),
    ),
    "... within its grace period": Told(
        Reason.WAITING_FOR_WORKERS,
        "Pod digits-worker-2 … of an earlier run … Since 2026-01-01T11:59:50Z … --force --grace-period=0",
        starting(dataclasses.replace(make_pod(2, run=0, deletion_timestamp=20), deletion_grace_seconds=30)),
    ),
    "... because its node is silent": Told(
        Reason.NODE_SILENT,
        "Node n1 is unreachable … Since 2026-01-01T11:58:30Z … kubectl taint node n1",
        ask(
            make_job(spec=CONSISTENT),
            make_pod(2, run=0, node="n1", deletion_timestamp=-500),
            admission=ADMITTED,
            rendezvous=make_view(),
            nodes={"n1": make_node("n1", NodeHealth.SILENT, since=-90)},
        ),
    ),
    "a scheduling gate is closed": Told(
        Reason.UNSCHEDULABLE,
        "Pod digits-worker-0 … SchedulingGated … a.b/wait … Since … wait for the controller that removes",
        starting(pending(0, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates: a.b/wait")),
    ),
    "Kueue has queued the pod on its own": Told(
        Reason.UNSCHEDULABLE,
        "Pod digits-worker-0 … a job of its own … kueue.x-k8s.io/queue-name … integrations.externalFrameworks",
        starting(pending(0, "SchedulingGated", "Scheduling is blocked due to: kueue.x-k8s.io/admission")),
    ),
    "... because its template names the queue": Told(
        Reason.UNSCHEDULABLE,
        "a job of its own … Remove the label kueue.x-k8s.io/queue-name from spec.workers.template.metadata.labels",
        starting(
            pending(0, "SchedulingGated", "blocked due to: kueue.x-k8s.io/admission", job=queue_in_template("team")),
            job=queue_in_template("team"),
            admission=dataclasses.replace(
                ADMITTED, template_hash=make_pod(job=queue_in_template("team")).template_hash
            ),
        ),
    ),
    "the kubelet has not read the Secret of the job's etcd yet": Told(
        Reason.WAITING_FOR_WORKERS,
        f'Pod digits-worker-0 on node n1 … "digits-etcd-{UID[:8]}-1" not found … nothing, unless it lasts',
        starting(
            pending(0, node="n1"),
            **says("Pod", "digits-worker-0", f'FailedMount: secret "digits-etcd-{UID[:8]}-1" not found'),
        ),
    ),
    "... or any other": Told(
        Reason.ETCD_STARTING,
        "Pod digits-etcd-0 on node n1 … failed to sync secret cache … nothing, unless it lasts",
        own_etcd(
            etcd_pod(node="n1"), **says("Pod", "digits-etcd-0", "FailedMount: failed to sync secret cache: timed out")
        ),
        READY,
    ),
    "an image is being pulled": Told(
        Reason.WAITING_FOR_WORKERS,
        "0 of 4 worker pods are ready; training needs at least 2 … "
        'Pod digits-worker-0 on node n1: Pulling image "llm:1" … Since 2026-01-01T11:59:55Z',
        starting(pending(0, node="n1"), **says("Pod", "digits-worker-0", 'Pulling image "llm:1"', warning=False)),
    ),
    "a quota rejects worker pods": Told(
        Reason.POD_REJECTED,
        "Pod of ElasticJob digits … exceeded quota: gpus, requested: requests.nvidia.com/gpu=1 … "
        "Since 2026-01-01T11:59:00Z … kubectl describe resourcequota",
        starting(**rejected("Pod", message=QUOTA)),
    ),
    "a service account is missing": Told(
        Reason.POD_REJECTED,
        'serviceaccount "x" not found … create the service account or priority class that is missing',
        starting(**rejected("Pod", message='error looking up service account ml/x: serviceaccount "x" not found')),
    ),
    "a webhook rejects a Service": Told(
        Reason.OBJECT_REJECTED,
        "Service of ElasticJob digits … denied by policy … Since … What to do",
        starting(**rejected("Service", message="denied by policy")),
    ),
    "a webhook rejects worker pods from the start": Told(
        Reason.POD_REJECTED,
        "Pod of ElasticJob digits … denied by policy … What to do",
        ask(make_job(), admission=dataclasses.replace(ADMITTED, rejection="denied by policy")),
        ACCEPTED,
    ),
    "the template is invalid": Told(
        Reason.INVALID_POD_TEMPLATE,
        "spec.workers.template … port 99999 … apply the job again",
        ask(make_job(), admission=dataclasses.replace(ADMITTED, rejection="port 99999", invalid=True)),
        ACCEPTED,
    ),
    "the endpoint is not allowed": Told(
        Reason.ENDPOINT_NOT_ALLOWED,
        "spec.rendezvous.endpoint a:1 … ask your cluster administrator",
        ask(make_job(spec={"rendezvous": {"type": "External", "endpoint": "a:1"}}), settings=RESTRICTED),
        ACCEPTED,
    ),
    "a quota rejects the etcd": Told(
        Reason.POD_REJECTED,
        "StatefulSet digits-etcd … maximum memory … Since 2026-01-01T11:59:30Z … limitrange",
        own_etcd(**says("StatefulSet", "digits-etcd", "FailedCreate: create Pod digits-etcd-0 failed: maximum memory")),
        READY,
    ),
    "... and worker pods are ready meanwhile": Told(
        Reason.POD_REJECTED,
        "StatefulSet digits-etcd … maximum memory … Since … limitrange",
        own_etcd(
            *(make_pod(index) for index in range(4)),
            **says("StatefulSet", "digits-etcd", "FailedCreate: create Pod digits-etcd-0 failed: maximum memory"),
        ),
    ),
    "the etcd has no node": Told(
        Reason.UNSCHEDULABLE,
        "Pod digits-etcd-0 … untolerated taint … Since … spec.rendezvous.etcd",
        own_etcd(etcd_pod("Unschedulable", "0/3 nodes are available: 3 had untolerated taint")),
        READY,
    ),
    "the etcd's claim has no volume": Told(
        Reason.CLAIM_UNBOUND,
        "PersistentVolumeClaim data-digits-etcd-0 of Pod digits-etcd-0 … unbound … Since … kubectl describe pvc",
        own_etcd(etcd_pod("Unschedulable", UNBOUND, claims=("data-digits-etcd-0",))),
        READY,
    ),
    "the etcd's image cannot be pulled": Told(
        Reason.IMAGE_UNAVAILABLE,
        "Pod digits-etcd-0 on node n2 … no such tag … Since … spec.rendezvous.etcd.image",
        own_etcd(etcd_pod("ErrImagePull", "no such tag", node="n2")),
        READY,
    ),
    "the etcd is starting": Told(
        Reason.WAITING_FOR_RENDEZVOUS,
        "4 of 4 worker pods are ready … Pod digits-etcd-0 on node n2 … Since … kubectl describe pod digits-etcd-0",
        own_etcd(etcd_pod(node="n2"), *(make_pod(index) for index in range(4))),
    ),
    "the etcd of a predecessor is on a dead node": Told(
        Reason.NAME_IN_USE,
        "Pod digits-etcd-0 on node n9 … earlier ElasticJob … Since 2026-01-01T11:51:40Z … delete that node",
        own_etcd(leftovers=(dataclasses.replace(etcd_pod(node="n9"), deletion_timestamp=at(-500), job_uid="old"),)),
        READY,
    ),
    "... and has been deleted only now": Told(
        Reason.NAME_IN_USE,
        "Pod digits-etcd-0 on node n9 … earlier ElasticJob … Since 2026-01-01T11:59:50Z … delete that node",
        own_etcd(
            leftovers=(
                dataclasses.replace(
                    etcd_pod(node="n9"), deletion_timestamp=at(20), deletion_grace_seconds=30, job_uid="old"
                ),
            )
        ),
        READY,
    ),
    "the etcd of a predecessor was orphaned": Told(
        Reason.NAME_IN_USE,
        "Pod digits-etcd-0 on node n9 … deleted without it … Since … kubectl delete pod digits-etcd-0 -n ml",
        own_etcd(leftovers=(dataclasses.replace(etcd_pod(node="n9"), job_uid="old"),)),
        READY,
    ),
    "etcd is unreachable": Told(
        Reason.ETCD_STARTING,
        "Pod digits-etcd-0 on node n2 … it is not ready … Since 2026-01-01T11:59:00Z … kubectl describe pod digits-e",
        ask(
            trained(),
            *(make_pod(index) for index in range(4)),
            unready_etcd(),
            settings=OWN_ETCD,
            objects=stateful_set(),
            rendezvous=make_view(Connectivity.UNREACHABLE, error="timed out", plan=make_plan()),
        ),
        READY,
    ),
    "the etcd ends again and again": Told(
        Reason.CONTAINER_CONFIG_ERROR,
        "Pod digits-etcd-0 on node n2 … back-off 5m0s … Since 2026-01-01T11:59:00Z … kubectl logs digits-etcd-0 -n",
        own_etcd(unready_etcd("CrashLoopBackOff", "back-off 5m0s restarting failed container=etcd")),
        READY,
    ),
    "the etcd is on one of many silent nodes": Told(
        Reason.NODES_UNHEALTHY,
        "3 of 3 nodes are not ready … kubectl get nodes",
        own_etcd(
            dataclasses.replace(unready_etcd(), node="n1"),
            nodes={f"n{index}": make_node(f"n{index}", NodeHealth.SILENT, since=-90) for index in (1, 2, 3)},
        ),
        READY,
    ),
    "an etcd of others is unreachable": Told(
        Reason.ETCD_UNREACHABLE,
        "etcd:2379 … timed out … check the address",
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.UNREACHABLE, error="timed out")),
        READY,
    ),
    "an etcd's certificate is not trusted": Told(
        Reason.ETCD_UNTRUSTED,
        "etcd:2379 … unknown CA … ca.crt of",
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.UNTRUSTED, error="unknown CA")),
        READY,
    ),
    "the Secret for etcd is missing": Told(
        Reason.ETCD_CREDENTIALS_UNUSABLE,
        "e:1 … no Secret ml/mine",
        ask(
            SECRETIVE, admission=ADMITTED, rendezvous=make_view(Connectivity.NO_CREDENTIALS, error="no Secret ml/mine")
        ),
        READY,
    ),
    "... and no pod is created before": Told(
        Reason.WAITING_FOR_ETCD,
        "e:1 … condition RendezvousReady",
        ask(
            SECRETIVE, admission=ADMITTED, rendezvous=make_view(Connectivity.NO_CREDENTIALS, error="no Secret ml/mine")
        ),
    ),
    "no etcd tier takes the run": Told(
        Reason.NO_ETCD_TIER,
        "Etcd tier t0 … 1 runs, and the chart's etcd.tier.maxRuns is 1 … Since 2026-01-01 … etcd.tiers",
        ask(make_job(), settings=IN_TIERS, admission=ADMITTED, tiers={"t0": TierView(asked=True, runs=1, since=NOW)}),
        READY,
    ),
    "the tier of the run was removed": Told(
        Reason.ETCD_TIER_REMOVED,
        "Etcd tier t0 … elasticjob suspend digits -n ml",
        ask(trained(status=IN_REMOVED_TIER), make_pod(0)),
        READY,
    ),
    "a value in etcd is invalid": Told(
        Reason.VALUE_NOT_UNDERSTOOD,
        "etcd:2379 … plan: no JSON",
        starting(make_pod(0), rendezvous=dataclasses.replace(make_view(), unreadable="plan: no JSON")),
        READY,
    ),
    "c10d's worker pod 0 is not running": Told(
        Reason.STORE_STARTING,
        "worker pod 0 … digits-worker-0.digits.ml.svc",
        starting(pending(0, node="n1"), job=make_job(spec={"rendezvous": {"backend": "c10d"}})),
        READY,
    ),
    "the operator has no runtime image": Told(
        Reason.RUNTIME_UNAVAILABLE,
        "spec.workers.runtime.inject is ImageVolume, but the operator has no runtime image … What to do: … "
        "runtime.repository",
        ask(make_job(workers={"runtime": {"inject": "ImageVolume"}})),
        ACCEPTED,
    ),
    "etcd denies requests": Told(
        Reason.ETCD_DENIED,
        "etcd:2379 … permission denied … role grant-permission",
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.DENIED, error="etcdserver: permission denied")),
        READY,
    ),
    "a node is silent, and its pods stay": Told(
        Reason.TRAINING,
        "Node n1 is unreachable … Since 2026-01-01T11:58:30Z … kubectl taint node n1",
        ask(
            trained(spec=CONSISTENT),
            make_pod(0, node="n1"),
            *(make_pod(index) for index in (1, 2, 3)),
            nodes={"n1": make_node("n1", NodeHealth.SILENT, since=-90)},
            rendezvous=make_view(plan=make_plan()),
        ),
    ),
    "a member is gone and etcd is unreachable": Told(
        Reason.RENDEZVOUS_LOST,
        "1 of 4 worker pods of round 1 … condition RendezvousReady",
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.UNREACHABLE, plan=make_plan())),
    ),
    "the outcome is unknown": Told(
        Reason.OUTCOME_UNKNOWN,
        "etcd at etcd:2379 … condition RendezvousReady",
        ask(trained(), rendezvous=make_view(Connectivity.UNREACHABLE)),
    ),
    "agents have not met": Told(
        Reason.WAITING_FOR_RENDEZVOUS,
        "4 of 4 worker pods are ready … kubectl logs -n ml -l elasticjob.dev/job-name=digits",
        starting(*(make_pod(index) for index in range(4))),
    ),
    "agents wait before they try again": Told(
        Reason.WAITING_FOR_RENDEZVOUS,
        "digits-worker-1 failed … ImportError: no module tqdm … The next attempt is at … kubectl logs",
        ask(trained(status=make_status(round=2)), *(make_pod(index) for index in range(4)), rendezvous=CRASHED),
    ),
    "a failed pod is replaced later": Told(
        Reason.WORKER_FAILED,
        "digits-worker-1 failed … Its replacement is created at … kubectl logs digits-worker-1 -n ml",
        ask(
            trained(status=make_status(round=2, restarts=3), max_restarts=9),
            failed_pod(1, started=-3, created=-9),
            rendezvous=make_view(plan=make_plan(2)),
        ),
        ConditionType.RESTARTING,
    ),
    "the others train without a worker pod whose processes start": Told(
        Reason.WORKERS_MISSING,
        "3 of 4 … Pod digits-worker-2 on node n1 … not ready … Since 2026-01-01T11:58:20Z … kubectl logs digits-",
        ask(
            trained(),
            *(make_pod(index, node="n1") for index in range(4)),
            rendezvous=make_view(plan=make_plan(size=3), unready=unready("digits-worker-2")),
        ),
        ConditionType.DEGRADED,
    ),
    "... or have failed alone": Told(
        Reason.WORKERS_MISSING,
        "2 of 4 … Pod digits-worker-1 … and of 1 other … before their first step with the others: OSError: no GPU",
        ask(
            trained(),
            *(make_pod(index) for index in range(4)),
            rendezvous=make_view(
                plan=make_plan(size=2), unready=unready("digits-worker-1", "digits-worker-3", failure="OSError: no GPU")
            ),
        ),
        ConditionType.DEGRADED,
    ),
    "... and after a resize": Told(
        Reason.SCALING_UP,
        "Pod digits-worker-4 … not ready … Since",
        ask(
            trained(6, status=make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, desired_replicas=4)),
            *(make_pod(index) for index in range(6)),
            rendezvous=make_view(plan=make_plan(size=4), unready=unready("digits-worker-4", "digits-worker-5")),
        ),
        ConditionType.RESIZING,
    ),
    "a surplus pod does not end": Told(
        Reason.SCALING_DOWN,
        "worker pods that have not left: 1, the first of them digits-worker-2 on node n9",
        ask(
            trained(2),
            *(make_pod(index) for index in (0, 1)),
            make_pod(2, node="n9"),
            rendezvous=make_view(plan=make_plan()),
        ),
        ConditionType.RESIZING,
    ),
    "a queue has not admitted the job": Told(
        Reason.SUSPENDED,
        "spec.suspend … It returns to queue gpus when it is resumed.",
        ask(in_queue("gpus"), admission=ADMITTED),
        SUSPENDED,
    ),
    "a pod does not end while the job is being suspended": Told(
        Reason.SUSPENDING,
        "digits-worker-3 on node n1 … If node n1 is certainly gone … kubectl delete pod digits-worker-3 -n ml",
        ask(make_job(spec={"suspend": True}), make_pod(3, node="n1", deletion_timestamp=-900)),
        SUSPENDED,
    ),
    "... because its node is silent and pods stay": Told(
        Reason.SUSPENDING,
        "digits-worker-3 on node n1 … Since 2026-01-01T11:58:30Z … kubectl taint node n1",
        ask(
            make_job(spec={**CONSISTENT, "suspend": True}),
            make_pod(3, node="n1", deletion_timestamp=-900),
            nodes={"n1": make_node("n1", NodeHealth.SILENT, since=-90)},
        ),
        SUSPENDED,
    ),
    "worker processes have no time to save": Told(
        Reason.ACCEPTED,
        "no time to save … terminationGracePeriodSeconds … spec.lifecycle.gracefulShutdownSeconds",
        ask(HASTY_JOB, admission=dataclasses.replace(ADMITTED, template_hash=hash_of(HASTY_JOB))),
        ACCEPTED,
    ),
    "the namespace is being deleted": Told(
        Reason.NAMESPACE_TERMINATING, "Namespace ml … another namespace", starting(namespace_terminating=True)
    ),
}


@pytest.mark.parametrize("told", WAITS.values(), ids=WAITS.keys())
def test_every_wait_is_told_as_what_it_is(told: Told) -> None:
    found, reason = told.plan, told.reason
    condition = found.status.condition(told.type_)
    assert condition is not None
    assert condition.reason == reason
    assert re.search(".*".join(map(re.escape, told.text.split(" … "))), condition.message, re.DOTALL)
    warnings = [event.reason for event in found.events if event.warning]
    if reason in BLOCKING_REASONS and reason is not Reason.NAMESPACE_TERMINATING:  # no Event can be posted there
        assert warnings.count(reason) == 1
        assert REMEDY in condition.message
    if REMEDY in condition.message and told.type_ is ACCEPTED:
        assert warnings == [reason]
    assert not [event.message for event in found.events if TIME.search(event.message)]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            "No node takes Pod w-0: 0/1. Since 2026-01-01T12:00:00Z. What to do: a.",
            "No node takes Pod w-0: 0/1. What to do: a.",
        ),
        (
            "1 of 2 worker pods are ready. j-worker-1-abcde failed (x (y)); restart 1 of at most 9. Its replacement is "
            "created at 2026-01-01T12:00:20Z.",
            "j-worker-1 failed (x (y)).",
        ),
        ("j-worker-1-bcd5q failed (x (y)); no restart of at most 3 is left.", "j-worker-1 failed (x (y))."),
    ],
)
def test_the_text_of_an_event_has_nothing_that_changes_when_it_repeats(message: str, text: str) -> None:
    assert repeatable(message) == text


@pytest.mark.parametrize(
    "reason", [reason for reason in MESSAGES if {"{since}", "{time}"} & set(re.findall(r"\{\w+\}", MESSAGES[reason]))]
)
def test_a_time_stands_in_a_sentence_of_its_own(reason: Reason) -> None:
    moment = "2026-01-01T12:00:00Z"
    text = MESSAGES[reason].replace("{since}", moment).replace("{time}", moment)
    assert not TIME.search(repeatable(text))


@table("name", {"of a pod that is gone": "digits-worker-9", "empty": ""})
def test_an_unready_member_without_a_pod_is_not_told(name: str) -> None:
    value = UnreadyValue(members=[name] if name else [], since=0.0)
    found = ask(
        trained(), *(make_pod(index) for index in range(4)), rendezvous=make_view(plan=make_plan(), unready=value)
    )
    assert found.status.condition(ConditionType.DEGRADED).status == "False"  # type: ignore[union-attr]


def asked(found: Plan) -> list[tuple[str, str]]:
    return [(action.kind, action.name) for action in made(found, ReadEvents)]


def test_events_are_read_where_only_they_have_the_cause() -> None:
    assert asked(own_etcd()) == [("StatefulSet", "digits-etcd")]
    assert asked(starting(pending(0, "Unschedulable", UNBOUND, claims=("data",)))) == [
        ("PersistentVolumeClaim", "data")
    ]
    assert asked(starting(pending(0, claims=("data", "checkpoints")), pending(1, claims=("data",)))) == [
        ("PersistentVolumeClaim", "data"),
        ("PersistentVolumeClaim", "checkpoints"),
    ]
    assert asked(starting(pending(0, node="n1"), pending(1, node="n1"))) == [("Pod", "digits-worker-0")]
    assert asked(starting(pending(0, "Unschedulable", "no room"), pending(1, "ErrImagePull", node="n1"))) == []


@pytest.mark.parametrize(("seconds", "again"), [(3, False), (5, True)])
def test_events_are_read_again_a_little_later(seconds: float, again: bool) -> None:
    known = says("StatefulSet", "digits-etcd", "FailedCreate: quota")["explanations"]
    read = {key: dataclasses.replace(item, read_at=at(-seconds)) for key, item in known.items()}
    found = own_etcd(explanations=read)
    assert bool(asked(found)) is again
    assert found.requeue_at is not None
    assert again or found.requeue_at <= at(5 - seconds)


def test_events_of_an_earlier_etcd_are_not_taken_for_the_cause() -> None:
    (old,) = says("StatefulSet", "digits-etcd", "FailedCreate: quota")["explanations"].values()
    found = own_etcd(explanations={("StatefulSet", "digits-etcd"): dataclasses.replace(old, at=at(-99999))})
    condition = found.status.condition(RUNNING)
    assert condition is not None
    assert condition.reason != Reason.POD_REJECTED


def test_events_of_an_earlier_wait_are_not_taken_for_the_cause() -> None:
    """Such as FailedScheduling of a pod that has a node by now."""
    pod = dataclasses.replace(pending(0, node="n1"), scheduled_at=at(-4))
    found = starting(pod, **says("Pod", pod.name, "FailedScheduling: 0/3 nodes are available"))
    condition = found.status.condition(RUNNING)
    assert condition is not None
    assert condition.reason == Reason.WAITING_FOR_WORKERS
    assert "FailedScheduling" not in condition.message
