"""Every wait that a job can be in is told as what it is: the object, its owner or node, since when, and the remedy, in
a condition, and in a Warning Event without a time where someone may have to act."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import orjson
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
from tests.unit.operator.planning.plans import ADMITTED, ask, trained
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
    found = OwnedObject(
        kind=Kind.STATEFUL_SET,
        name="digits-etcd",
        uid="s",
        owner_uid=UID,
        terminating=False,
        created_at=at(-30),
        json=orjson.dumps(body),
    )
    return {(Kind.STATEFUL_SET, "digits-etcd"): found}


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


QUOTA = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8, limited: 8"
CONSISTENT = {"rendezvous": {"onPartition": OnPartition.CONSISTENT}}
SECRETIVE = make_job(spec={"rendezvous": {"type": "External", "endpoint": "e:1", "secretName": "mine"}})
INIT_END = ContainerEnd(exit_code=3, reason="Error", message="no such bucket", finished_at=at(0), container="fetch")
CRASH = make_failure(1, round_number=2, message="ImportError: no module tqdm")
CRASHED = make_view(plan=make_plan(2), failure=dataclasses.replace(CRASH, restart_delay=60.0))

WAITS: dict[str, tuple[Plan, ConditionType, Reason, list[str]]] = {
    "a worker pod has no node": (
        starting(pending(1, "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")),
        RUNNING,
        Reason.UNSCHEDULABLE,
        ["Pod digits-worker-1", "3 Insufficient nvidia.com/gpu", "Since 2026-01-01T11:59:40Z", "--replicas 2"],
    ),
    "its claim has no volume": (
        starting(
            pending(0, "Unschedulable", UNBOUND, claims=("data",)),
            **says("PersistentVolumeClaim", "data", 'ProvisioningFailed: storageclass "fast" not found'),
        ),
        RUNNING,
        Reason.CLAIM_UNBOUND,
        ["PersistentVolumeClaim data of Pod digits-worker-0", '"fast" not found', "Since", "kubectl describe pvc data"],
    ),
    "its claim waits for a provisioner, of which the scheduler says nothing": (
        starting(
            pending(0, claims=("data", "checkpoints")),
            **says("PersistentVolumeClaim", "checkpoints", PROVISIONING, warning=False),
        ),
        RUNNING,
        Reason.CLAIM_UNBOUND,
        ["PersistentVolumeClaim checkpoints of Pod digits-worker-0", PROVISIONING, "kubectl describe pvc checkpoints"],
    ),
    "its claim is being deleted": (
        starting(pending(0, "Unschedulable", 'persistentvolumeclaim "ck" is being deleted. not found', claims=("ck",))),
        RUNNING,
        Reason.CLAIM_UNBOUND,
        ["PersistentVolumeClaim ck", "is being deleted", "suspend the job", "create it again"],
    ),
    "its claim does not exist": (
        starting(pending(0, "Unschedulable", 'persistentvolumeclaim "mine" not found', claims=("other", "mine"))),
        RUNNING,
        Reason.CLAIM_UNBOUND,
        ["PersistentVolumeClaim mine of Pod digits-worker-0", "not found", "Since", "create the claim"],
    ),
    "its image cannot be pulled": (
        starting(pending(0, "ImagePullBackOff", "no such tag", node="n1")),
        RUNNING,
        Reason.IMAGE_UNAVAILABLE,
        ["Pod digits-worker-0 on node n1", "no such tag", "Since", "imagePullSecrets"],
    ),
    "a Secret of its environment is missing": (
        starting(pending(0, "CreateContainerConfigError", 'secret "key" not found', node="n1")),
        RUNNING,
        Reason.CONTAINER_CONFIG_ERROR,
        ["Pod digits-worker-0 on node n1", 'secret "key" not found', "Since", "create the missing"],
    ),
    "a volume of it cannot be mounted": (
        starting(
            pending(0, node="n1"),
            **says("Pod", "digits-worker-0", 'FailedMount: MountVolume.SetUp failed: secret "key" not found'),
        ),
        RUNNING,
        Reason.CONTAINER_CONFIG_ERROR,
        ["Pod digits-worker-0 on node n1", 'FailedMount: MountVolume.SetUp failed: secret "key"', "Since", "create"],
    ),
    "the runtime's image cannot be pulled": (
        starting(pending(0, "ErrImagePull", "no runtime", node="n1", runtime=True)),
        RUNNING,
        Reason.RUNTIME_UNAVAILABLE,
        ["Pod digits-worker-0 on node n1", "no runtime", "Since", "runtime.repository"],
    ),
    "an init container is running": (
        starting(pending(0, "init container fetch is running", node="n1", since=at(-3600))),
        RUNNING,
        Reason.WAITING_FOR_WORKERS,
        ["Pod digits-worker-0 on node n1", "init container fetch is running", "Since 2026-01-01T11:00:00Z"],
    ),
    "a sidecar ends again and again": (
        starting(pending(0, "CrashLoopBackOff", "back-off 40s restarting failed container=proxy", node="n1")),
        RUNNING,
        Reason.CONTAINER_CONFIG_ERROR,
        ["Pod digits-worker-0 on node n1", "container=proxy", "Since", "kubectl logs digits-worker-0 -n ml --all-"],
    ),
    "an init container fails again and again": (
        ask(
            make_job(status=make_status(ConditionType.ACCEPTED, restarts=3), max_restarts=9),
            dataclasses.replace(failed_pod(1, created=-9), end=None, init_end=INIT_END),
            admission=ADMITTED,
            rendezvous=make_view(),
        ),
        RUNNING,
        Reason.WORKER_FAILED,
        [
            "digits-worker-1 failed",
            "init container fetch: exit code 3",
            "restart 4 of at most 9",
            "Its replacement is created at 2026-01-01T12:00:",
            "it ended at 2026-01-01T12:00:00Z",
            "kubectl logs digits-worker-1 -n ml -c fetch",
        ],
    ),
    "a pod of an earlier run does not end": (
        starting(make_pod(2, run=0, node="n9", deletion_timestamp=-500)),
        RUNNING,
        Reason.WAITING_FOR_WORKERS,
        [
            "Pod digits-worker-2 on node n9",
            "of an earlier run",
            "Since 2026-01-01T11:51:40Z",
            "--force --grace-period=0",
        ],
    ),
    "... because its node is silent": (
        ask(
            make_job(spec=CONSISTENT),
            make_pod(2, run=0, node="n1", deletion_timestamp=-500),
            admission=ADMITTED,
            rendezvous=make_view(),
            nodes={"n1": make_node("n1", NodeHealth.SILENT, since=-90)},
        ),
        RUNNING,
        Reason.NODE_SILENT,
        ["Node n1 is unreachable", "Since 2026-01-01T11:58:30Z", "kubectl taint node n1"],
    ),
    "a scheduling gate is closed": (
        starting(pending(0, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates: a.b/wait")),
        RUNNING,
        Reason.UNSCHEDULABLE,
        ["Pod digits-worker-0", "SchedulingGated", "a.b/wait", "Since", "wait for the controller that removes"],
    ),
    "Kueue has queued the pod on its own": (
        starting(pending(0, "SchedulingGated", "Scheduling is blocked due to: kueue.x-k8s.io/admission")),
        RUNNING,
        Reason.UNSCHEDULABLE,
        ["Pod digits-worker-0", "a job of its own", "kueue.x-k8s.io/queue-name", "integrations.externalFrameworks"],
    ),
    "... because its template names the queue": (
        starting(
            pending(0, "SchedulingGated", "blocked due to: kueue.x-k8s.io/admission", job=queue_in_template("team")),
            job=queue_in_template("team"),
            admission=dataclasses.replace(
                ADMITTED, template_hash=make_pod(job=queue_in_template("team")).template_hash
            ),
        ),
        RUNNING,
        Reason.UNSCHEDULABLE,
        ["a job of its own", "Remove the label kueue.x-k8s.io/queue-name from spec.workers.template.metadata.labels"],
    ),
    "the kubelet has not read the Secret of the job's etcd yet": (
        starting(
            pending(0, node="n1"),
            **says("Pod", "digits-worker-0", f'FailedMount: secret "digits-etcd-{UID[:8]}-1" not found'),
        ),
        RUNNING,
        Reason.WAITING_FOR_WORKERS,
        ["Pod digits-worker-0 on node n1", f'"digits-etcd-{UID[:8]}-1" not found', "nothing, unless it lasts"],
    ),
    "... or any other": (
        own_etcd(
            etcd_pod(node="n1"), **says("Pod", "digits-etcd-0", "FailedMount: failed to sync secret cache: timed out")
        ),
        READY,
        Reason.ETCD_STARTING,
        ["Pod digits-etcd-0 on node n1", "failed to sync secret cache", "nothing, unless it lasts"],
    ),
    "an image is being pulled": (
        starting(pending(0, node="n1"), **says("Pod", "digits-worker-0", 'Pulling image "llm:1"', warning=False)),
        RUNNING,
        Reason.WAITING_FOR_WORKERS,
        [
            "0 of 4 worker pods are ready; training needs at least 2",
            'Pod digits-worker-0 on node n1: Pulling image "llm:1"',
            "Since 2026-01-01T11:59:55Z",
        ],
    ),
    "a quota rejects worker pods": (
        starting(**rejected("Pod", message=QUOTA)),
        RUNNING,
        Reason.POD_REJECTED,
        ["Pod of ElasticJob digits", QUOTA, "Since 2026-01-01T11:59:00Z", "kubectl describe resourcequota"],
    ),
    "a service account is missing": (
        starting(**rejected("Pod", message='error looking up service account ml/x: serviceaccount "x" not found')),
        RUNNING,
        Reason.POD_REJECTED,
        ['serviceaccount "x" not found', "create the service account or priority class that is missing"],
    ),
    "a webhook rejects a Service": (
        starting(**rejected("Service", message="denied by policy")),
        RUNNING,
        Reason.OBJECT_REJECTED,
        ["Service of ElasticJob digits", "denied by policy", "Since", REMEDY],
    ),
    "a webhook rejects worker pods from the start": (
        ask(make_job(), admission=dataclasses.replace(ADMITTED, rejection="denied by policy")),
        ACCEPTED,
        Reason.POD_REJECTED,
        ["Pod of ElasticJob digits", "denied by policy", REMEDY],
    ),
    "the template is invalid": (
        ask(make_job(), admission=dataclasses.replace(ADMITTED, rejection="port 99999", invalid=True)),
        ACCEPTED,
        Reason.INVALID_POD_TEMPLATE,
        ["spec.workers.template", "port 99999", "apply the job again"],
    ),
    "the endpoint is not allowed": (
        ask(make_job(spec={"rendezvous": {"type": "External", "endpoint": "a:1"}}), settings=RESTRICTED),
        ACCEPTED,
        Reason.ENDPOINT_NOT_ALLOWED,
        ["spec.rendezvous.endpoint a:1", "ask your cluster administrator"],
    ),
    "a quota rejects the etcd": (
        own_etcd(**says("StatefulSet", "digits-etcd", "FailedCreate: create Pod digits-etcd-0 failed: maximum memory")),
        READY,
        Reason.POD_REJECTED,
        ["StatefulSet digits-etcd", "maximum memory", "Since 2026-01-01T11:59:30Z", "limitrange"],
    ),
    "... and worker pods are ready meanwhile": (
        own_etcd(
            *(make_pod(index) for index in range(4)),
            **says("StatefulSet", "digits-etcd", "FailedCreate: create Pod digits-etcd-0 failed: maximum memory"),
        ),
        RUNNING,
        Reason.POD_REJECTED,
        ["StatefulSet digits-etcd", "maximum memory", "Since", "limitrange"],
    ),
    "the etcd has no node": (
        own_etcd(etcd_pod("Unschedulable", "0/3 nodes are available: 3 had untolerated taint")),
        READY,
        Reason.UNSCHEDULABLE,
        ["Pod digits-etcd-0", "untolerated taint", "Since", "spec.rendezvous.etcd"],
    ),
    "the etcd's claim has no volume": (
        own_etcd(etcd_pod("Unschedulable", UNBOUND, claims=("data-digits-etcd-0",))),
        READY,
        Reason.CLAIM_UNBOUND,
        ["PersistentVolumeClaim data-digits-etcd-0 of Pod digits-etcd-0", "unbound", "Since", "kubectl describe pvc"],
    ),
    "the etcd's image cannot be pulled": (
        own_etcd(etcd_pod("ErrImagePull", "no such tag", node="n2")),
        READY,
        Reason.IMAGE_UNAVAILABLE,
        ["Pod digits-etcd-0 on node n2", "no such tag", "Since", "spec.rendezvous.etcd.image"],
    ),
    "the etcd is starting": (
        own_etcd(etcd_pod(node="n2"), *(make_pod(index) for index in range(4))),
        RUNNING,
        Reason.WAITING_FOR_RENDEZVOUS,
        ["4 of 4 worker pods are ready", "Pod digits-etcd-0 on node n2", "Since", "kubectl describe pod digits-etcd-0"],
    ),
    "the etcd of a predecessor is on a dead node": (
        own_etcd(leftovers=(dataclasses.replace(etcd_pod(node="n9"), deletion_timestamp=at(-500), job_uid="old"),)),
        READY,
        Reason.NAME_IN_USE,
        ["Pod digits-etcd-0 on node n9", "earlier ElasticJob", "Since 2026-01-01T11:51:40Z", "delete that node"],
    ),
    "the etcd of a predecessor was orphaned": (
        own_etcd(leftovers=(dataclasses.replace(etcd_pod(node="n9"), job_uid="old"),)),
        READY,
        Reason.NAME_IN_USE,
        ["Pod digits-etcd-0 on node n9", "deleted without it", "Since", "kubectl delete pod digits-etcd-0 -n ml"],
    ),
    "etcd is unreachable": (
        ask(
            trained(),
            *(make_pod(index) for index in range(4)),
            unready_etcd(),
            settings=OWN_ETCD,
            objects=stateful_set(),
            rendezvous=make_view(Connectivity.UNREACHABLE, error="timed out", plan=make_plan()),
        ),
        READY,
        Reason.ETCD_STARTING,
        [
            "Pod digits-etcd-0 on node n2",
            "it is not ready",
            "Since 2026-01-01T11:59:00Z",
            "kubectl describe pod digits-e",
        ],
    ),
    "the etcd ends again and again": (
        own_etcd(unready_etcd("CrashLoopBackOff", "back-off 5m0s restarting failed container=etcd")),
        READY,
        Reason.CONTAINER_CONFIG_ERROR,
        [
            "Pod digits-etcd-0 on node n2",
            "back-off 5m0s",
            "Since 2026-01-01T11:59:00Z",
            "kubectl logs digits-etcd-0 -n",
        ],
    ),
    "the etcd is on one of many silent nodes": (
        own_etcd(
            dataclasses.replace(unready_etcd(), node="n1"),
            nodes={f"n{index}": make_node(f"n{index}", NodeHealth.SILENT, since=-90) for index in (1, 2, 3)},
        ),
        READY,
        Reason.NODES_UNHEALTHY,
        ["3 of 3 nodes are not ready", "kubectl get nodes"],
    ),
    "an etcd of others is unreachable": (
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.UNREACHABLE, error="timed out")),
        READY,
        Reason.ETCD_UNREACHABLE,
        ["etcd:2379", "timed out", "check the address"],
    ),
    "an etcd's certificate is not trusted": (
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.UNTRUSTED, error="unknown CA")),
        READY,
        Reason.ETCD_UNTRUSTED,
        ["etcd:2379", "unknown CA", "ca.crt of"],
    ),
    "the Secret for etcd is missing": (
        ask(
            SECRETIVE, admission=ADMITTED, rendezvous=make_view(Connectivity.NO_CREDENTIALS, error="no Secret ml/mine")
        ),
        READY,
        Reason.ETCD_CREDENTIALS_UNUSABLE,
        ["e:1", "no Secret ml/mine"],
    ),
    "... and no pod is created before": (
        ask(
            SECRETIVE, admission=ADMITTED, rendezvous=make_view(Connectivity.NO_CREDENTIALS, error="no Secret ml/mine")
        ),
        RUNNING,
        Reason.WAITING_FOR_ETCD,
        ["e:1", "condition RendezvousReady"],
    ),
    "no etcd tier takes the run": (
        ask(make_job(), settings=IN_TIERS, admission=ADMITTED, tiers={"t0": TierView(asked=True, runs=1, since=NOW)}),
        READY,
        Reason.NO_ETCD_TIER,
        ["Etcd tier t0", "1 runs, and the chart's etcd.tier.maxRuns is 1", "Since 2026-01-01", "etcd.tiers"],
    ),
    "the tier of the run was removed": (
        ask(trained(status=IN_REMOVED_TIER), make_pod(0)),
        READY,
        Reason.ETCD_TIER_REMOVED,
        ["Etcd tier t0", "elasticjob suspend digits -n ml"],
    ),
    "a value in etcd is invalid": (
        starting(make_pod(0), rendezvous=dataclasses.replace(make_view(), unreadable="plan: no JSON")),
        READY,
        Reason.VALUE_NOT_UNDERSTOOD,
        ["etcd:2379", "plan: no JSON"],
    ),
    "c10d's worker pod 0 is not running": (
        starting(pending(0, node="n1"), job=make_job(spec={"rendezvous": {"backend": "c10d"}})),
        READY,
        Reason.STORE_STARTING,
        ["worker pod 0", "digits-worker-0.digits.ml.svc"],
    ),
    "the operator has no runtime image": (
        ask(make_job(workers={"runtime": {"inject": "ImageVolume"}})),
        ACCEPTED,
        Reason.RUNTIME_UNAVAILABLE,
        ["runtime", REMEDY],
    ),
    "etcd denies requests": (
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.DENIED, error="etcdserver: permission denied")),
        READY,
        Reason.ETCD_DENIED,
        ["etcd:2379", "permission denied", "role grant-permission"],
    ),
    "a node is silent, and its pods stay": (
        ask(
            trained(spec=CONSISTENT),
            make_pod(0, node="n1"),
            *(make_pod(index) for index in (1, 2, 3)),
            nodes={"n1": make_node("n1", NodeHealth.SILENT, since=-90)},
            rendezvous=make_view(plan=make_plan()),
        ),
        RUNNING,
        Reason.TRAINING,
        ["Node n1 is unreachable", "Since 2026-01-01T11:58:30Z", "kubectl taint node n1"],
    ),
    "a member is gone and etcd is unreachable": (
        ask(trained(), make_pod(0), rendezvous=make_view(Connectivity.UNREACHABLE, plan=make_plan())),
        RUNNING,
        Reason.RENDEZVOUS_LOST,
        ["1 of 4 worker pods of round 1", "condition RendezvousReady"],
    ),
    "the outcome is unknown": (
        ask(trained(), rendezvous=make_view(Connectivity.UNREACHABLE)),
        RUNNING,
        Reason.OUTCOME_UNKNOWN,
        ["etcd at etcd:2379", "condition RendezvousReady"],
    ),
    "agents have not met": (
        starting(*(make_pod(index) for index in range(4))),
        RUNNING,
        Reason.WAITING_FOR_RENDEZVOUS,
        ["4 of 4 worker pods are ready", "kubectl logs -n ml -l elasticjob.dev/job-name=digits"],
    ),
    "agents wait before they try again": (
        ask(trained(status=make_status(round=2)), *(make_pod(index) for index in range(4)), rendezvous=CRASHED),
        RUNNING,
        Reason.WAITING_FOR_RENDEZVOUS,
        ["digits-worker-1 failed", "ImportError: no module tqdm", "The next attempt is at", "kubectl logs"],
    ),
    "a failed pod is replaced later": (
        ask(
            trained(status=make_status(round=2, restarts=3), max_restarts=9),
            failed_pod(1, started=-3, created=-9),
            rendezvous=make_view(plan=make_plan(2)),
        ),
        ConditionType.RESTARTING,
        Reason.WORKER_FAILED,
        ["digits-worker-1 failed", "Its replacement is created at", "kubectl logs digits-worker-1 -n ml"],
    ),
    "the others train without a worker pod whose processes start": (
        ask(
            trained(),
            *(make_pod(index, node="n1") for index in range(4)),
            rendezvous=make_view(plan=make_plan(size=3), unready=unready("digits-worker-2")),
        ),
        ConditionType.DEGRADED,
        Reason.WORKERS_MISSING,
        ["3 of 4", "Pod digits-worker-2 on node n1", "not ready", "Since 2026-01-01T11:58:20Z", "kubectl logs digits-"],
    ),
    "... or have failed alone": (
        ask(
            trained(),
            *(make_pod(index) for index in range(4)),
            rendezvous=make_view(
                plan=make_plan(size=2), unready=unready("digits-worker-1", "digits-worker-3", failure="OSError: no GPU")
            ),
        ),
        ConditionType.DEGRADED,
        Reason.WORKERS_MISSING,
        ["2 of 4", "Pod digits-worker-1", "and of 1 other", "before their first step with the others: OSError: no GPU"],
    ),
    "... and after a resize": (
        ask(
            trained(6, status=make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, round=1, desired_replicas=4)),
            *(make_pod(index) for index in range(6)),
            rendezvous=make_view(plan=make_plan(size=4), unready=unready("digits-worker-4", "digits-worker-5")),
        ),
        ConditionType.RESIZING,
        Reason.SCALING_UP,
        ["Pod digits-worker-4", "not ready", "Since"],
    ),
    "a surplus pod does not end": (
        ask(
            trained(2),
            *(make_pod(index) for index in (0, 1)),
            make_pod(2, node="n9"),
            rendezvous=make_view(plan=make_plan()),
        ),
        ConditionType.RESIZING,
        Reason.SCALING_DOWN,
        ["worker pods that have not left: 1, the first of them digits-worker-2 on node n9"],
    ),
    "a queue has not admitted the job": (
        ask(in_queue("gpus"), admission=ADMITTED),
        SUSPENDED,
        Reason.SUSPENDED,
        ["spec.suspend", "It returns to queue gpus when it is resumed."],
    ),
    "a pod does not end while the job is being suspended": (
        ask(make_job(spec={"suspend": True}), make_pod(3, node="n1", deletion_timestamp=-900)),
        SUSPENDED,
        Reason.SUSPENDING,
        ["digits-worker-3 on node n1", "If node n1 is certainly gone", "kubectl delete pod digits-worker-3 -n ml"],
    ),
    "... because its node is silent and pods stay": (
        ask(
            make_job(spec={**CONSISTENT, "suspend": True}),
            make_pod(3, node="n1", deletion_timestamp=-900),
            nodes={"n1": make_node("n1", NodeHealth.SILENT, since=-90)},
        ),
        SUSPENDED,
        Reason.SUSPENDING,
        ["digits-worker-3 on node n1", "Since 2026-01-01T11:58:30Z", "kubectl taint node n1"],
    ),
    "worker processes have no time to save": (
        ask(HASTY_JOB, admission=dataclasses.replace(ADMITTED, template_hash=hash_of(HASTY_JOB))),
        ACCEPTED,
        Reason.ACCEPTED,
        ["no time to save", "terminationGracePeriodSeconds", "spec.lifecycle.gracefulShutdownSeconds"],
    ),
    "the namespace is being deleted": (
        starting(namespace_terminating=True),
        RUNNING,
        Reason.NAMESPACE_TERMINATING,
        ["Namespace ml", "another namespace"],
    ),
}


@pytest.mark.parametrize(("found", "type_", "reason", "words"), WAITS.values(), ids=WAITS.keys())
def test_every_wait_is_told_as_what_it_is(found: Plan, type_: ConditionType, reason: Reason, words: list[str]) -> None:
    condition = found.status.condition(type_)
    assert condition is not None
    assert (condition.reason, [each for each in words if each not in condition.message]) == (reason, [])
    warnings = [event.reason for event in found.events if event.warning]
    if reason in BLOCKING_REASONS and reason is not Reason.NAMESPACE_TERMINATING:  # no Event can be posted there
        assert warnings.count(reason) == 1
        assert REMEDY in condition.message
    if REMEDY in condition.message and type_ is ACCEPTED:
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
    return [(each.kind, each.name) for each in found.actions if isinstance(each, ReadEvents)]


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
    read = {key: dataclasses.replace(each, read_at=at(-seconds)) for key, each in known.items()}
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
