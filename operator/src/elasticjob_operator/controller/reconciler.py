"""Reconciles one job: observe -> plan -> apply -> write status -> record Events.

Whatever is remembered between two reconciliations only saves work and may be lost at any moment: a dry run is repeated,
a rejection met again, a pending status decided again (see status_throttle).
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Iterable

from elasticjob_runtime.etcd import StoreError

from elasticjob_operator.api import API_VERSION, KIND, ElasticJob, InvalidJobError, Status
from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.controller.status_throttle import as_written, conflict_delay, seconds_to_hold
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.etcd import RunWatches
from elasticjob_operator.kube import ApplyResult, Cluster, EventRecorder
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import (
    Action,
    ClearRun,
    CreatePod,
    EvictMember,
    JobEvent,
    Plan,
    PublishSpec,
    events_of_actions,
    plan,
    plan_for_invalid_spec,
)
from elasticjob_operator.policies.injection import is_about_volumes
from elasticjob_operator.resources.injection import has_image_volume
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import POD, Admission, Connectivity, JobState, Rejection

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
CONFLICT_RETRY_SECONDS = 0.25
ETCD_WRITES = 8
"""Concurrent writes of one job to its etcd."""
NAMES_IN_LOG = 4
"""Object names in one log line."""
_RENDEZVOUS = (PublishSpec, EvictMember, ClearRun)


@dataclasses.dataclass(slots=True)
class _Memory:
    """What is remembered of a job between two reconciliations."""

    uid: str
    admission: Admission | None = None
    rejection: Rejection | None = None
    rejections: int = 0
    unanswered: int = 0
    """Dry runs in a row without a verdict."""
    namespace_terminating: bool = False
    image_volume_rejected: bool = False
    run_id: str = ""
    """Of the run whose rendezvous is watched."""
    written_at: float = float("-inf")
    """Monotonic time of the last status write, s."""
    pending_status: Status | None = None
    """Decided, but not written yet."""
    pending_base: Status | None = None
    """The written status from which `pending_status` was decided."""
    pending_since: float = 0.0
    """Monotonic time since which a status is pending, s."""
    pending_events: tuple[JobEvent, ...] = ()
    """Events of `pending_status`."""
    conflicts: int = 0
    """Status writes in a row that failed because the job had changed."""
    recorded_version: str = ""
    recorded: collections.Counter[JobEvent] = dataclasses.field(default_factory=collections.Counter)
    """How often each Event was recorded at that version of the job."""


class Reconciler:
    """`reconcile` is called concurrently for different keys, never for the same key."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobCache,
        cluster: Cluster,
        run_watches: RunWatches,
        recorder: EventRecorder,
        queue: WorkQueue[NamespacedName],
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._cluster = cluster
        self._run_watches = run_watches
        self._recorder = recorder
        self._queue = queue
        self._clock = clock
        self._memories: dict[NamespacedName, _Memory] = {}

    async def reconcile(self, key: NamespacedName) -> None:
        """Raises ApiError or ConnectionError; retry later."""
        try:
            job = self._jobs.get(key)
        except InvalidJobError as error:
            await self._report_invalid(key, error)
            return
        memory = self._memories.get(key)
        replaced = memory is not None and (job is None or job.uid != memory.uid)
        if memory is not None and replaced and not await self._clean_up(key, memory.uid):
            return
        if job is None:
            self._queue.forget(key)
            return
        await self._reconcile(key, job, self._memories.setdefault(key, _Memory(uid=job.uid)))

    async def _reconcile(self, key: NamespacedName, job: ElasticJob, memory: _Memory) -> None:
        now = self._clock()
        state = self._observe(key, job, memory)
        if memory.pending_status is not None and memory.pending_base != job.status:
            memory.pending_status = (
                None  # another operator, such as the previous leader, wrote the status: it takes precedence
            )
        current = job if memory.pending_status is None else job.model_copy(update={"status": memory.pending_status})
        planned = plan(current, state, self._settings, now)
        await self._run_watches.follow(key, planned.target)
        memory.run_id = planned.target.run_id if planned.target else ""
        _log_actions(key, planned.actions)
        failure, done = await self._apply(key, job, memory, planned.actions)
        planned = dataclasses.replace(planned, events=(*planned.events, *events_of_actions(done)))
        await self._write_status(key, job.metadata.resource_version, job.status, planned, memory, done=bool(done))
        if failure is not None:
            raise failure
        if planned.requeue_at is not None:
            self._requeue_at(key, planned.requeue_at, now)

    def _observe(self, key: NamespacedName, job: ElasticJob, memory: _Memory) -> JobState:
        return dataclasses.replace(
            self._cluster.observe(key, job.uid),
            rendezvous=dataclasses.replace(self._run_watches.view(key), run_id=memory.run_id),
            admission=memory.admission,
            rejection=memory.rejection,
            image_volume_rejected=memory.image_volume_rejected,
            namespace_terminating=memory.namespace_terminating,
        )

    async def _apply(
        self, key: NamespacedName, job: ElasticJob, memory: _Memory, actions: tuple[Action, ...]
    ) -> tuple[Exception | None, tuple[Action, ...]]:
        """Writes to cluster and rendezvous concurrently. Returns a temporary failure, which does not affect the status,
        and what was created and deleted."""
        applied, _ = await asyncio.gather(
            self._cluster.apply(
                job,
                [action for action in actions if not isinstance(action, _RENDEZVOUS)],
                rejected=memory.rejections + memory.unanswered > 0,
            ),
            self._write_rendezvous(key, [action for action in actions if isinstance(action, _RENDEZVOUS)]),
            return_exceptions=True,
        )
        if isinstance(applied, BaseException):
            raise applied
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
            memory.rejection = Rejection(kinds=applied.rejected_kinds, message=applied.rejection, retry_at=retry_at)
            self._queue.add(key)  # to report it in status
        elif memory.rejection is not None and applied.created & memory.rejection.kinds:
            memory.rejection, memory.rejections = None, 0
        return applied.failure, applied.done

    async def _write_rendezvous(self, key: NamespacedName, actions: list[PublishSpec | EvictMember | ClearRun]) -> None:
        """Several at once. The first failure ends them, so that an unresponsive etcd is waited for once; the next
        reconciliation writes what is left."""
        left, failed = iter(actions), False

        async def lane() -> None:
            nonlocal failed
            for action in left:
                try:
                    await self._run_watches.execute(key, action)
                except StoreError as error:
                    log.warning("%s: %s", _described(action), error, extra=about(key, action.reason))
                    failed = True
                if failed:
                    return

        await asyncio.gather(*(lane() for _ in range(min(ETCD_WRITES, len(actions)))))

    async def _write_status(
        self, key: NamespacedName, version: str, written: Status, planned: Plan, memory: _Memory, *, done: bool = False
    ) -> None:
        """`version`, `written`: of the job that was planned for; `done`: this reconciliation created or deleted
        something."""
        events = tuple(dict.fromkeys(memory.pending_events + planned.events))
        if planned.status != written:
            now = time.monotonic()
            pending_since = memory.pending_since if memory.pending_status is not None else now
            seconds = seconds_to_hold(
                written, planned.status, now - memory.written_at, done=done, held=now - pending_since
            )
            if seconds > 0:
                memory.pending_status, memory.pending_events, memory.pending_since = (
                    as_written(planned.status),
                    events,
                    pending_since,
                )
                memory.pending_base = written
                self._queue.add_at(key, asyncio.get_running_loop().time() + seconds)
                return
            memory.pending_events = events  # kept if the write fails
            if not await self._send_status(key, version, planned.status, memory):
                return
        memory.pending_status, memory.pending_events = None, ()
        self._record_events(key, memory, events)

    async def _send_status(self, key: NamespacedName, version: str, status: Status, memory: _Memory) -> bool:
        """False: not written, because the job was deleted or has changed; it is reconciled again."""
        if str(self._jobs.version(key)) != version:
            self._queue.add(key)  # changed during this reconciliation
            return False
        answer = await self._cluster.write_status(key, memory.uid, version, status.to_api())
        if answer.job is None:
            log.info("The job was deleted", extra=about(key))
            self._jobs.remove(key, memory.uid)
            self._queue.add(key)
            return False
        generation = self._jobs.generation(key)
        self._jobs.put(answer.job)
        if not answer.written:
            delay = conflict_delay(memory.conflicts)
            memory.conflicts += 1
            log.info(
                "The job changed before its status was written, reconciling again in %.2f s", delay, extra=about(key)
            )
            self._queue.add_at(key, asyncio.get_running_loop().time() + delay)
            return False
        memory.written_at, memory.conflicts = time.monotonic(), 0
        if generation != self._jobs.generation(key):
            self._queue.add(key)  # the watch will deliver that spec change as a known version
        return True

    def _record_events(self, key: NamespacedName, memory: _Memory, events: Iterable[JobEvent]) -> None:
        version = str(self._jobs.version(key))
        if memory.recorded_version != version:
            memory.recorded_version = version
            memory.recorded.clear()
        for event in events:
            log.info("%s: %s", event.reason.value, event.message, extra=about(key, event.reason.value))
            again = memory.recorded[event]  # the same action again, without a status write in between
            memory.recorded[event] += 1
            self._recorder.record(*key, memory.uid, f"{version}.{again}" if again else version, event)

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
        await self._write_status(
            key, str(self._jobs.version(key)), before, plan_for_invalid_spec(body, error, self._clock()), memory
        )

    async def _clean_up(self, key: NamespacedName, uid: str) -> bool:
        """The job was deleted: the garbage collector deletes its objects; its keys in a user's etcd are deleted here,
        once its agents have ended. False: not yet."""
        view = self._run_watches.view(key)
        if view.connectivity is Connectivity.REACHABLE and not view.empty:
            if self._cluster.has_active_pods(key, uid):
                return False  # their end requeues this key
            await self._write_rendezvous(key, [ClearRun(reason="the job was deleted")])
        await self._run_watches.follow(key, None)
        del self._memories[key]
        return True


def _is_image_volume_rejected(actions: Iterable[Action], applied: ApplyResult) -> bool:
    """Whether a pod with the runtime as an image volume was rejected, perhaps because of that volume."""
    asked = applied.admission
    if asked is not None and asked.image_volume and asked.rejection and not applied.unanswered:
        return is_about_volumes(asked.rejection, invalid=asked.invalid)
    created = any(isinstance(action, CreatePod) and has_image_volume(action.body) for action in actions)
    return created and POD in applied.rejected_kinds and is_about_volumes(applied.rejection, invalid=False)


def _reason_of(applied: ApplyResult) -> str:
    return applied.rejection or (applied.admission.rejection if applied.admission is not None else "")


def retry_delay(rejections: int, *, longest: float = MAX_RETRY_SECONDS) -> float:
    """Delay after so many rejections in a row, s."""
    return min(longest, FIRST_RETRY_SECONDS * 2.0 ** min(rejections - 1, 10))


def about(key: NamespacedName, reason: str = "") -> dict[str, object]:
    """The job that a log record is about, for kopf's formatters, and the reason."""
    extra: dict[str, object] = {
        "k8s_ref": {"apiVersion": API_VERSION, "kind": KIND, "namespace": key[0], "name": key[1]}
    }
    return {**extra, "reason": reason} if reason else extra


def _log_actions(key: NamespacedName, actions: Iterable[Action]) -> None:
    """One line per kind and reason: a job of a thousand workers must not log a thousand lines."""
    groups: dict[tuple[str, str], list[str]] = {}
    for action in actions:
        groups.setdefault((type(action).__name__, action.reason), []).append(_name(action))
    for (kind, why), names in groups.items():
        more = f" and {len(names) - NAMES_IN_LOG} more" if len(names) > NAMES_IN_LOG else ""
        log.info("%s %s%s: %s", kind, ", ".join(names[:NAMES_IN_LOG]), more, why, extra=about(key, why))


def _name(action: Action) -> str:
    body = getattr(action, "body", None)
    return str(
        body["metadata"]["name"]
        if body
        else getattr(action, "name", "") or getattr(action, "member", "") or getattr(action, "node", "")
    )


def _described(action: Action) -> str:
    """Kind, object and reason, without the body."""
    return f"{type(action).__name__} {_name(action)}".strip() + f": {action.reason}"
