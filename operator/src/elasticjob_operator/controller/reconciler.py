"""Reconciles one job: observe -> plan -> apply -> write status -> record Events.

What is remembered between two reconciliations only saves work and may be lost at any moment: a dry run is repeated, and
a rejected create is rejected again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from elasticjob_api import ElasticJob, InvalidJobError, Status
from elasticjob_runtime.etcd import StoreError

from elasticjob_operator import metrics
from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.controller.job_log import about, described, log_actions
from elasticjob_operator.controller.progress import ProgressWriter
from elasticjob_operator.controller.status_writer import StatusWriter
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.etcd import RunWatches, set_aside_key
from elasticjob_operator.kube import ApplyResult, Cluster, EventRecorder, writing_about
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import (
    Action,
    ClearRun,
    CreatePod,
    ReadEvents,
    RendezvousAction,
    events_of_actions,
    plan,
    plan_for_invalid_spec,
)
from elasticjob_operator.policies.injection import is_about_volumes
from elasticjob_operator.queueing.job import base_missing_since
from elasticjob_operator.resources.injection import has_image_volume
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import POD, Admission, Connectivity, Explanation, JobState, Rejection, TierView

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
CONFLICT_RETRY_SECONDS = 0.25
ETCD_WRITES = 8
"""Concurrent writes of one job to its etcd."""
_MOST_EXPLANATIONS = 8
"""Objects of one job whose Events are remembered."""


@dataclasses.dataclass(slots=True)
class _Memory:
    """What is remembered of a job between two reconciliations."""

    uid: str
    admission: Admission | None = None
    rejection: Rejection | None = None
    rejections: int = 0
    explanations: dict[tuple[str, str], Explanation] = dataclasses.field(default_factory=dict)
    unanswered: int = 0
    """Consecutive dry runs without a result."""
    namespace_terminating: bool = False
    image_volume_rejected: bool = False
    unconfirmed: dict[int, str] = dataclasses.field(default_factory=dict)
    """By index, names of worker pods whose creation was requested and not confirmed. They are used again: if one was
    created after all, the next request does not create a second pod."""
    run_id: str = ""
    """ID of the run whose rendezvous is watched."""
    base_missing_since: datetime.datetime | None = None
    """As of QueueView."""
    pods: frozenset[str] = frozenset()
    """Names of its pods at the last reconciliation."""


class Reconciler:
    """`reconcile` is called concurrently for different keys, never for the same key. `leads(key)`: whether this
    operator leads the job; what it remembers of others is forgotten. `tiers`: what is known of the etcd tiers."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobCache,
        cluster: Cluster,
        run_watches: RunWatches,
        recorder: EventRecorder,
        queue: WorkQueue[NamespacedName],
        progress: ProgressWriter,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
        leads: Callable[[NamespacedName], bool] = lambda _: True,
        tiers: Callable[[], Mapping[str, TierView]] = dict,
    ) -> None:
        self._leads, self._tiers, self._progress = leads, tiers, progress
        self._settings = settings
        self._jobs = jobs
        self._cluster = cluster
        self._run_watches = run_watches
        self._status = StatusWriter(jobs, cluster, recorder, queue, progress)
        self._queue = queue
        self._clock = clock
        self._memories: dict[NamespacedName, _Memory] = {}
        self._former: dict[NamespacedName, set[str]] = {}
        """UIDs of deleted jobs of that name whose keys may still be in etcd."""

    def remembers(self, key: NamespacedName) -> bool:
        return key in self._memories or key in self._former

    @property
    def remembered(self) -> set[NamespacedName]:
        return {*self._memories, *self._former}

    async def reconcile(self, key: NamespacedName) -> None:
        """Raises ApiError or ConnectionError; retry later."""
        with writing_about(key):
            if self._leads(key):
                await self._reconcile_current(key)
            else:
                await self._forget(key)

    async def _forget(self, key: NamespacedName) -> None:
        self._memories.pop(key, None)
        self._status.forget(key)
        self._queue.forget(key)
        for watched in (key, *(set_aside_key(key, uid) for uid in self._former.pop(key, ()))):
            await self._run_watches.follow(watched, None)

    async def _reconcile_current(self, key: NamespacedName) -> None:
        memory = self._memories.get(key)
        if memory is not None and memory.uid != self._jobs.uid(key):
            del self._memories[key]
            self._status.forget(key)
            self._run_watches.set_aside(key, memory.uid)
            self._former.setdefault(key, set()).add(memory.uid)
        await self._clean_up(key)
        try:
            job = self._jobs.get(key)
        except InvalidJobError as error:
            await self._report_invalid(key, error)
            return
        if job is None:
            if key not in self._former:
                self._queue.forget(key)
            return
        await self._reconcile(key, job, self._memories.setdefault(key, _Memory(uid=job.uid)))

    async def _reconcile(self, key: NamespacedName, job: ElasticJob, memory: _Memory) -> None:
        now, decided_at = self._clock(), time.monotonic()
        state = self._observe(key, job, memory)
        planned = plan(self._status.with_pending(key, job), state, self._settings, now)
        await self._run_watches.follow(key, planned.target)
        memory.run_id = planned.target.run_id if planned.target else ""
        log_actions(key, planned.actions)
        failure, done = await self._apply(key, job, memory, planned.actions)
        planned = dataclasses.replace(planned, events=(*planned.events, *events_of_actions(done)))
        await self._status.write(
            key,
            memory.uid,
            job.metadata.resource_version,
            job.status,
            planned,
            decided_at=decided_at,
            done=bool(done),
        )
        if failure is not None:
            raise failure
        if planned.requeue_at is not None:
            self._requeue_at(key, planned.requeue_at, now)
        self._progress.expect(key, planned.stalls_at)

    def _observe(self, key: NamespacedName, job: ElasticJob, memory: _Memory) -> JobState:
        observed = self._cluster.observe(key, job.uid)
        known = {pod.name for pod in observed.pods}
        memory.unconfirmed = {index: name for index, name in memory.unconfirmed.items() if name not in known}
        memory.rejection = once_pods_are_gone(memory.rejection, memory.pods - known, self._clock())
        memory.pods = frozenset(known)
        queue = observed.queue
        memory.base_missing_since = base_missing_since(job, queue, memory.base_missing_since, self._clock())
        if queue is not None:
            queue = dataclasses.replace(queue, base_missing_since=memory.base_missing_since)
        return dataclasses.replace(
            observed,
            queue=queue,
            unconfirmed=memory.unconfirmed,
            rendezvous=dataclasses.replace(self._run_watches.view(key), run_id=memory.run_id),
            tiers=self._tiers(),
            admission=memory.admission,
            rejection=memory.rejection,
            explanations=dict(memory.explanations),
            image_volume_rejected=memory.image_volume_rejected,
            namespace_terminating=memory.namespace_terminating,
        )

    async def _apply(
        self, key: NamespacedName, job: ElasticJob, memory: _Memory, actions: tuple[Action, ...]
    ) -> tuple[Exception | None, tuple[Action, ...]]:
        """Writes to cluster and rendezvous concurrently. Returns a temporary failure, which does not affect the status,
        and what was created and deleted."""
        applied, written = await asyncio.gather(
            self._cluster.apply(
                job,
                [action for action in actions if not isinstance(action, (RendezvousAction, ReadEvents))],
                rejected=memory.rejections + memory.unanswered > 0,
            ),
            self._write_rendezvous(key, [action for action in actions if isinstance(action, RendezvousAction)]),
            return_exceptions=True,
        )
        if isinstance(applied, BaseException):
            raise applied
        created = {action.name for action in applied.done if isinstance(action, CreatePod)}
        memory.unconfirmed |= {
            action.index: action.name
            for action in actions
            if isinstance(action, CreatePod) and action.name not in created
        }
        await self._explain(key, memory, actions)
        if applied.admission is not None:
            memory.unanswered = memory.unanswered + 1 if applied.unanswered else 0
            memory.admission = applied.admission
            if applied.unanswered:
                delay = retry_delay(memory.unanswered, longest=applied.admission.retry_seconds)
                memory.admission = dataclasses.replace(applied.admission, retry_seconds=delay)
        if applied.namespace_terminating:
            memory.namespace_terminating = True  # permanent: termination of a namespace is never undone
            log.info("Ignoring the job: its namespace is being terminated", extra=about(key))
            return None, applied.done
        if _is_image_volume_rejected(actions, applied) and not memory.image_volume_rejected:
            memory.image_volume_rejected = True
            log.info("The API server rejects the runtime as an image volume: %s", _reason_of(applied), extra=about(key))
            self._queue.add(key)  # try again with an init container, if the job lets the operator choose
        if applied.missed:
            self._queue.add_at(key, asyncio.get_running_loop().time() + CONFLICT_RETRY_SECONDS)
        if applied.rejection:
            memory.rejections += 1
            delay = retry_delay(memory.rejections)
            retry_at = self._clock() + datetime.timedelta(seconds=delay)
            log.warning("Rejected, retrying in %.0f s: %s", delay, applied.rejection, extra=about(key))
            memory.rejection = Rejection(
                kinds=applied.rejected_kinds,
                message=applied.rejection,
                retry_at=retry_at,
                since=memory.rejection.since if memory.rejection is not None else self._clock(),
            )
            self._queue.add(key)  # to report it in status
        elif memory.rejection is not None and applied.created & memory.rejection.kinds:
            memory.rejection, memory.rejections = None, 0
        failure = written if isinstance(written, Exception) else applied.failure
        return failure, applied.done

    async def _explain(self, key: NamespacedName, memory: _Memory, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, ReadEvents):
                asked = (action.kind, action.name)
                before = memory.explanations.get(asked)
                memory.explanations.pop(asked, None)
                memory.explanations[asked] = await self._cluster.explain(key[0], *asked, before)
                while len(memory.explanations) > _MOST_EXPLANATIONS:
                    del memory.explanations[next(iter(memory.explanations))]

    async def _write_rendezvous(self, key: NamespacedName, actions: list[RendezvousAction]) -> None:
        """Writes concurrently. The first failure ends it, so that an unresponsive etcd is waited for only once; the
        next reconciliation, once that etcd has responded, writes the rest. Raises bugs."""
        left, failed = iter(actions), False

        async def write_rest() -> None:
            nonlocal failed
            for action in left:
                try:
                    await self._run_watches.execute(key, action)
                except Exception as error:
                    metrics.ETCD_WRITE_ERRORS.inc()
                    failed = True
                    if not isinstance(error, StoreError):
                        raise
                    log.warning("%s: %s", described(action), error, extra=about(key, action.reason))
                if failed:
                    return

        await asyncio.gather(*(write_rest() for _ in range(min(ETCD_WRITES, len(actions)))))

    def _requeue_at(self, key: NamespacedName, when: datetime.datetime, now: datetime.datetime) -> None:
        delay = (when - now).total_seconds()
        if delay <= 0:
            self._queue.add(key)
        else:
            self._queue.add_at(key, asyncio.get_running_loop().time() + delay)

    async def _report_invalid(self, key: NamespacedName, error: InvalidJobError) -> None:
        body = self._jobs.body(key)
        if body is None:
            return
        uid = str(body["metadata"]["uid"])
        before = Status.model_validate(body.get("status") or {})
        memory = self._memories.setdefault(key, _Memory(uid=uid))
        planned = plan_for_invalid_spec(body, error, self._clock())
        version = str(self._jobs.version(key))
        await self._status.write(key, memory.uid, version, before, planned, decided_at=time.monotonic())

    async def _clean_up(self, key: NamespacedName) -> None:
        """Deletes the keys of deleted jobs in an etcd that is not their own, once their agents have ended. The garbage
        collector deletes their objects."""
        for uid in list(self._former.get(key, ())):
            aside = set_aside_key(key, uid)
            view = self._run_watches.view(aside)
            if view.connectivity is Connectivity.REACHABLE and not view.empty:
                if self._cluster.has_active_pods(key, uid):
                    continue  # their end requeues this key
                await self._write_rendezvous(aside, [ClearRun(reason="the job was deleted")])
            await self._run_watches.follow(aside, None)
            self._former[key].discard(uid)
        if not self._former.get(key):
            self._former.pop(key, None)


def _is_image_volume_rejected(actions: Iterable[Action], applied: ApplyResult) -> bool:
    """Whether a pod with the runtime as an image volume was rejected, perhaps because of that volume."""
    asked = applied.admission
    if asked is not None and asked.image_volume and asked.rejection and not applied.unanswered:
        return is_about_volumes(asked.rejection, invalid=asked.invalid)
    created = any(isinstance(action, CreatePod) and has_image_volume(action.like) for action in actions)
    return created and POD in applied.rejected_kinds and is_about_volumes(applied.rejection, invalid=False)


def _reason_of(applied: ApplyResult) -> str:
    return applied.rejection or (applied.admission.rejection if applied.admission is not None else "")


def once_pods_are_gone(rejection: Rejection | None, gone: Collection[str], now: datetime.datetime) -> Rejection | None:
    """A pod that is gone no longer counts towards a quota: what was rejected is created again at once."""
    return dataclasses.replace(rejection, retry_at=now) if rejection is not None and gone else rejection


def retry_delay(rejections: int, *, longest: float = MAX_RETRY_SECONDS) -> float:
    """Delay after this many consecutive rejections, s."""
    return min(longest, FIRST_RETRY_SECONDS * 2.0 ** min(rejections - 1, 10))
