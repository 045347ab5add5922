"""What a job waits for: one object, its owner or node, since when, and the remedy.

Every wait of a job is made here, so that conditions, Events and `elasticjob describe` tell it in the same words. The
most urgent one is told first (`first_wait`): what cannot be created comes before what does not start, and etcd before
the worker pods that need it.

Controllers and kubelets say only in Events why a StatefulSet has no pod, a claim no volume and a container no start:
see events_to_read.py.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence

from elasticjob_api import BLOCKING_REASONS, REMEDY, ElasticJob, Reason, message
from elasticjob_api.fields import format_time
from elasticjob_runtime.contract import UnreadyValue

from elasticjob_operator import names
from elasticjob_operator.policies.condition_updates import Cause
from elasticjob_operator.policies.events_to_read import CLAIM, GATED, OF_SCHEDULER, Answers, claim_of
from elasticjob_operator.state import LONG_AGO, POD, Blocked, OwnedObject, Pod, PodPhase, Rejection

_QUEUE = "kueue.x-k8s.io/queue-name"
_KUEUE_GATE = "kueue.x-k8s.io/admission"
_KUEUE_QUEUED_IT = (
    "Kueue has queued this pod as a job of its own. Name the queue in the label kueue.x-k8s.io/queue-name of the "
    "ElasticJob, and add ElasticJob.v1alpha1.elasticjob.dev to integrations.externalFrameworks of Kueue's "
    "configuration."
)
_POD_NAMES_QUEUE = (
    "Kueue has queued this pod as a job of its own. Remove the label kueue.x-k8s.io/queue-name from "
    "spec.workers.template.metadata.labels: it belongs on the ElasticJob only."
)
_OTHER_GATES = "wait for the controller that removes these gates, or remove them from spec.workers.template."
_CRASH_LOOP = "CrashLoopBackOff"
"""Of a container that is restarted in its pod: a sidecar, or the etcd."""
_CONFIG = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "InvalidImageName",
        "ErrImageNeverPull",
        "StartError",
        _CRASH_LOOP,
    }
)
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable"})

_REMEDIES = {
    Reason.POD_REJECTED: "follow the message: create the service account or priority class that is missing, satisfy "
    "the policy, or raise the quota (kubectl describe resourcequota,limitrange -n {namespace}).",
    Reason.OBJECT_REJECTED: "follow the message; for a quota: kubectl describe resourcequota -n {namespace}",
    Reason.IMAGE_UNAVAILABLE: "check the image's name and the credentials of its registry (imagePullSecrets), and "
    "apply the job again.",
    Reason.CONTAINER_CONFIG_ERROR: "create the missing ConfigMap, Secret or volume, or correct the template and apply "
    "the job again.",
    Reason.UNSCHEDULABLE: "free or add nodes, or request less{fewer}.",
    Reason.RUNTIME_UNAVAILABLE: "check the chart's runtime.repository and runtime.tag, whether that image exists for "
    "the node's architecture, and the pod's imagePullSecrets; or set spec.workers.runtime.inject to None if the image "
    "of the worker pods contains the runtime.",
}
_OF_ETCD = {
    Reason.IMAGE_UNAVAILABLE: "check spec.rendezvous.etcd.image and imagePullSecrets, or the chart's etcdImage.",
    Reason.UNSCHEDULABLE: "free or add nodes, or change tolerations, nodeSelector and resources in "
    "spec.rendezvous.etcd.",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """What a job waits for."""

    reason: Reason
    kind: str
    name: str
    holder: str = ""
    """Its owner or its node: "on node n1", "of Pod w-0"."""
    detail: str
    """In the words of the API server, the scheduler, the kubelet or a controller."""
    since: datetime.datetime | None = None
    remedy: str

    @property
    def serious(self) -> bool:
        """It may need someone's action."""
        return self.reason in BLOCKING_REASONS

    @property
    def cause(self) -> Cause:
        where = " ".join(filter(None, (self.kind, self.name, self.holder)))
        if self.serious:
            text = message(self.reason, object=where, detail=self.detail)
        else:
            text = f"Waiting for {where}: {self.detail}"
        since = f" Since {format_time(self.since)}." if self.since is not None else ""
        return Cause(reason=self.reason, message=f"{text.rstrip('. ')}.{since}{REMEDY}{self.remedy}")


def first_wait(
    job: ElasticJob,
    *,
    rejection: Rejection | None = None,
    etcd: Wait | None = None,
    workers: Iterable[Pod] = (),
    stale: Sequence[Pod] = (),
    answers: Answers | None = None,
    unready: UnreadyValue | None = None,
) -> Wait | None:
    """The most urgent one. `rejection`: of something that is missing now; `etcd`: what its own etcd waits for;
    `workers`: live worker pods; `stale`: those of an earlier run or attempt;
    `unready`: those without which the agents train."""
    if rejection is not None:
        return of_rejection(job, rejection)
    first, known = of_stale(job, stale[0]) if stale and not (etcd and etcd.serious) else etcd, answers or {}
    for pod in [pod for pod in workers if pod.phase is PodPhase.PENDING or pod.blocked is not None]:
        if first is not None and first.serious:
            break
        if first is None or pod.blocked is not None or (POD, pod.name) in known:  # a thousand may be starting
            found = of_pod(job, pod, known)
            first = found if found is not None and (first is None or found.serious) else first
    return first or (of_unready(job, unready, workers) if unready is not None else None)


def of_rejection(job: ElasticJob, rejection: Rejection) -> Wait:
    """The API server rejects creates."""
    reason = Reason.POD_REJECTED if POD in rejection.kinds else Reason.OBJECT_REJECTED
    return Wait(
        reason=reason,
        kind=" and ".join(sorted(rejection.kinds)),
        name="",
        holder=f"of ElasticJob {job.name}",
        detail=rejection.message,
        since=rejection.since,
        remedy=_remedy(job, reason),
    )


def of_name(job: ElasticJob, pod: Pod) -> Wait:
    """A pod that an earlier job of the same name left has a name that the job needs."""
    if pod.deletion_timestamp is None:
        state, remedy = "deleted without it", f"delete it, or give this job another name: {_delete(job, pod)}"
    else:
        state, remedy = "deleted, and its pod is terminating", ending(job, pod)
    return Wait(
        reason=Reason.NAME_IN_USE,
        kind=POD,
        name=pod.name,
        holder=pod.place,
        detail=f"an earlier ElasticJob of this name was {state}",
        since=pod.deletion_requested_at or pod.created_at,
        remedy=remedy,
    )


def of_stale(job: ElasticJob, pod: Pod) -> Wait:
    """No pod of a run is created before those of the last one have ended."""
    return Wait(
        reason=Reason.WAITING_FOR_WORKERS,
        kind=POD,
        name=pod.name,
        holder=pod.place,
        detail="it is of an earlier run or attempt of the job, and has not ended",
        since=pod.deletion_requested_at or pod.created_at,
        remedy=ending(job, pod),
    )


def ending(job: ElasticJob, pod: Pod) -> str:
    """What to do about a pod that is being deleted."""
    gone = f"If node {pod.node} is certainly gone, delete that node, or run: " if pod.node else "If it stays, run: "
    return f"nothing, if its node works. {gone}{_delete(job, pod)} --force --grace-period=0"


def _delete(job: ElasticJob, pod: Pod) -> str:
    return f"kubectl delete pod {pod.name} -n {job.namespace}"


def of_pod(job: ElasticJob, pod: Pod, answers: Answers) -> Wait | None:
    """Why a worker pod does not start, or a pod of etcd is not ready. None: it has started."""
    if pod.phase is not PodPhase.PENDING and pod.blocked is None:
        return None
    blocked = pod.blocked or Blocked(reason="")
    if claim := claim_of(pod, answers):
        return _of_claim(job, pod, claim, answers)
    reason, detail = _reason_of(blocked.reason), ": ".join(filter(None, (blocked.reason, blocked.message)))
    since, answer = pod.scheduled_at or pod.created_at, answers.get((POD, pod.name))
    if blocked.runtime and reason in (Reason.IMAGE_UNAVAILABLE, Reason.CONTAINER_CONFIG_ERROR):
        reason = Reason.RUNTIME_UNAVAILABLE
    elif pod.blocked is None and answer is not None and answer.message and answer.at >= since:
        detail = answer.message
        if not answer.warning:
            since = answer.at
        elif not _is_awaited(job, detail):
            reason = Reason.CONTAINER_CONFIG_ERROR
    return _of_pod(job, pod, reason, detail or ("it is starting" if pod.node else "it has no node yet"), since)


def _of_gate(job: ElasticJob, detail: str) -> str:
    if _KUEUE_GATE not in detail:
        return _OTHER_GATES
    labels = (job.spec.workers.template.get("metadata") or {}).get("labels") or {}
    return _POD_NAMES_QUEUE if _QUEUE in labels else _KUEUE_QUEUED_IT


def _of_pod(job: ElasticJob, pod: Pod, reason: Reason, detail: str, since: datetime.datetime) -> Wait:
    remedy = _remedy(job, reason, _REMEDIES if pod.index >= 0 else {**_REMEDIES, **_OF_ETCD})
    why = pod.blocked.reason if pod.blocked is not None else ""
    if why == GATED:
        remedy = _of_gate(job, detail)
    elif why == _CRASH_LOOP:
        remedy = f"read why it ends: kubectl logs {pod.name} -n {job.namespace} --all-containers"
    return Wait(
        reason=reason,
        kind=POD,
        name=pod.name,
        holder=pod.place,
        detail=detail,
        since=(pod.blocked.since if pod.blocked else None) or since,
        remedy=remedy or f"nothing, unless it lasts: kubectl describe pod {pod.name} -n {job.namespace}",
    )


def of_unready(job: ElasticJob, unready: UnreadyValue, workers: Iterable[Pod]) -> Wait | None:
    """Why the worker group trains without a pod that runs. None: it no longer does."""
    pods = {pod.name: pod for pod in workers if pod.running and pod.name in unready.members}
    name = next(iter(unready.members), "")
    if name not in pods:
        return None
    why = f"they failed before their first step with the others: {unready.failure}" if unready.failure else ""
    others = f" (and of {len(pods) - 1} other pods)" if len(pods) > 1 else ""
    return Wait(
        reason=Reason.WAITING_FOR_WORKERS,
        kind=POD,
        name=name,
        holder=pods[name].place,
        detail=f"its worker processes{others} are not ready to train with the others" + (f"; {why}" if why else ""),
        since=datetime.datetime.fromtimestamp(unready.since, datetime.timezone.utc),
        remedy="nothing, if the script takes that long until its first step; else read what it says: "
        f"kubectl logs {name} -n {job.namespace}",
    )


def _is_awaited(job: ElasticJob, detail: str) -> bool:
    """What cannot be mounted was not read yet by the kubelet, or is a Secret that the operator creates."""
    ours = f'secret "{job.name}-' in detail and f"-{job.uid[:8]}-" in detail
    return ours or "failed to sync" in detail


def _of_claim(job: ElasticJob, pod: Pod, claim: str, answers: Answers) -> Wait:
    answer, said = answers.get((CLAIM, claim)), pod.blocked.message if pod.blocked is not None else ""
    remedy = "create the claim, or correct its storage class, size or access mode; more nodes do not help"
    if "is being deleted" in said:
        remedy = "suspend the job, because the claim stays until no pod uses it; create it again, and resume the job"
    return Wait(
        reason=Reason.CLAIM_UNBOUND,
        kind=CLAIM,
        name=claim,
        holder=f"of Pod {pod.name}",
        detail=answer.message if answer is not None and answer.message else said,
        since=pod.created_at,
        remedy=f"{remedy}: kubectl describe pvc {claim} -n {job.namespace}",
    )


def of_etcd(
    job: ElasticJob,
    stateful_set: OwnedObject | None,
    pods: Sequence[Pod],
    leftovers: Iterable[Pod],
    answers: Answers,
) -> Wait | None:
    """What the job's own etcd waits for. None: nothing, or it has none. `stateful_set`: unless it is being deleted;
    `pods`: those of it that are neither lost nor terminating; `leftovers`: of an earlier job of the same name."""
    if stateful_set is None:
        return None
    answer = answers.get((stateful_set.kind.value, stateful_set.name))
    needed = {names.etcd_member(job.name, index) for index in range(job.etcd_members)}
    waits = [of_name(job, pod) for pod in leftovers if pod.name in needed]
    waits += [wait for pod in pods if (wait := of_pod(job, pod, answers)) is not None]
    if len(pods) < job.etcd_members:
        created = stateful_set.created_at
        rejected = answer is not None and answer.warning and answer.at >= (created or LONG_AGO)
        reason = Reason.POD_REJECTED if rejected else Reason.ETCD_STARTING
        waits.append(
            Wait(
                reason=reason,
                kind=stateful_set.kind.value,
                name=stateful_set.name,
                holder="(the job's etcd)",
                detail=answer.message if answer is not None and rejected else "it has no pod yet",
                since=stateful_set.created_at,
                remedy=_remedy(job, reason)
                or f"nothing, unless it lasts: kubectl describe statefulset {stateful_set.name} -n {job.namespace}",
            )
        )
    return min(waits, key=lambda one: not one.serious, default=None)


def _reason_of(reason: str) -> Reason:
    if reason in _IMAGE:
        return Reason.IMAGE_UNAVAILABLE
    if reason in _CONFIG:
        return Reason.CONTAINER_CONFIG_ERROR
    return Reason.UNSCHEDULABLE if reason in OF_SCHEDULER else Reason.WAITING_FOR_WORKERS


def _remedy(job: ElasticJob, reason: Reason, remedies: Mapping[Reason, str] = _REMEDIES) -> str:
    """Empty: none is known."""
    fewer = ""
    if job.replicas > job.min_replicas:
        command = f"kubectl scale elasticjob {job.name} -n {job.namespace} --replicas {job.min_replicas}"
        fewer = f"; or train with fewer worker pods: {command}"
    return remedies.get(reason, "").format(namespace=job.namespace, fewer=fewer)
