"""The loop of one job: observe -> plan -> apply -> write status -> tell.

All that is kept between two rounds is in memory for speed alone and may be lost at any moment: the answer to a dry run
is asked again, a rejection met again, a status that is not written yet decided again (see pacing).
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
from elasticjob_operator.controller.status_throttle import as_written, conflict_wait, seconds_to_hold
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.etcd import RunWatches
from elasticjob_operator.kube import Cluster, EventRecorder
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import (
    Action,
    ClearRun,
    EvictMember,
    JobEvent,
    Plan,
    PublishSpec,
    events_of_actions,
    plan,
    plan_for_invalid_spec,
)
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Admission, Connectivity, JobState, Rejection

log = logging.getLogger(__name__)

FIRST_REJECTION_WAIT, LONGEST_REJECTION_WAIT = 1.0, 60.0
MISSED_SECONDS = 0.25
AT_ONCE = 8
"""Writes of one job to its etcd."""
NAMED = 4
"""Names in one line of the log."""
_RENDEZVOUS = (PublishSpec, EvictMember, ClearRun)


@dataclasses.dataclass(slots=True)
class _Memory:
    """What is remembered of a job between two rounds."""

    uid: str
    admission: Admission | None = None
    rejection: Rejection | None = None
    rejections: int = 0
    unanswered: int = 0
    """Dry runs in a row that got no verdict."""
    namespace_terminating: bool = False
    run_id: str = ""
    """Of the run whose rendezvous is followed."""
    written_at: float = float("-inf")
    """Monotonic time of the last status write, s."""
    unwritten: Status | None = None
    """Decided, and held back."""
    based_on: Status | None = None
    """The written status from which that was decided."""
    held_since: float = 0.0
    """Monotonic time since which something is, s."""
    untold: tuple[JobEvent, ...] = ()
    """Of what is held back."""
    conflicts: int = 0
    """Status writes in a row that came too late: the job had changed."""
    told_version: str = ""
    told: collections.Counter[JobEvent] = dataclasses.field(default_factory=collections.Counter)
    """What was told how often at that version of the job."""


class Reconciler:
    """`reconcile` is called for one key at a time; different keys at the same time."""

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
        """Raises ApiError or ConnectionError: try again later."""
        try:
            job = self._jobs.get(key)
        except InvalidJobError as error:
            await self._refuse(key, error)
            return
        memory = self._memories.get(key)
        replaced = memory is not None and (job is None or job.uid != memory.uid)
        if memory is not None and replaced and not await self._leave(key, memory.uid):
            return
        if job is None:
            self._queue.forget(key)
            return
        await self._round(key, job, self._memories.setdefault(key, _Memory(uid=job.uid)))

    async def _round(self, key: NamespacedName, job: ElasticJob, memory: _Memory) -> None:
        now = self._clock()
        world = self._observe(key, job, memory)
        if memory.unwritten is not None and memory.based_on != job.status:
            memory.unwritten = (
                None  # somebody else wrote: an operator that led before, say. It stands, above all an end
            )
        current = job if memory.unwritten is None else job.model_copy(update={"status": memory.unwritten})
        decided = plan(current, world, self._settings, now)
        await self._run_watches.follow(key, decided.target)
        memory.run_id = decided.target.run_id if decided.target else ""
        _log_actions(key, decided.actions)
        failure, done = await self._apply(key, job, memory, decided.actions)
        decided = dataclasses.replace(decided, events=(*decided.events, *events_of_actions(done)))
        await self._write_status(key, job.metadata.resource_version, job.status, decided, memory, done=bool(done))
        if failure is not None:
            raise failure
        if decided.requeue_at is not None:
            self._look_again(key, decided.requeue_at, now)

    def _observe(self, key: NamespacedName, job: ElasticJob, memory: _Memory) -> JobState:
        return dataclasses.replace(
            self._cluster.observe(key, job.uid),
            rendezvous=dataclasses.replace(self._run_watches.view(key), run_id=memory.run_id),
            admission=memory.admission,
            rejection=memory.rejection,
            namespace_terminating=memory.namespace_terminating,
        )

    async def _apply(
        self, key: NamespacedName, job: ElasticJob, memory: _Memory, actions: tuple[Action, ...]
    ) -> tuple[Exception | None, tuple[Action, ...]]:
        """Cluster and rendezvous at once. Returns a failure that may pass (what status says is true all the same), and
        what was created and deleted."""
        applied, _ = await asyncio.gather(
            self._cluster.apply(
                job,
                [action for action in actions if not isinstance(action, _RENDEZVOUS)],
                refused=memory.rejections + memory.unanswered > 0,
            ),
            self._tell_agents(key, [action for action in actions if isinstance(action, _RENDEZVOUS)]),
            return_exceptions=True,
        )
        if isinstance(applied, BaseException):
            raise applied
        if applied.admission is not None:
            memory.unanswered = memory.unanswered + 1 if applied.unanswered else 0
            memory.admission = applied.admission
            if applied.unanswered:
                delay = rejection_wait(memory.unanswered, longest=applied.admission.retry_seconds)
                memory.admission = dataclasses.replace(applied.admission, retry_seconds=delay)
        if applied.namespace_terminating:
            memory.namespace_terminating = True  # for good: a namespace that is being terminated never comes back
            log.info("left alone: its namespace is being terminated", extra=about(key))
            return None, applied.done
        if applied.missed:
            self._queue.add_at(key, asyncio.get_running_loop().time() + MISSED_SECONDS)
        if applied.rejection:
            memory.rejections += 1
            delay = rejection_wait(memory.rejections)
            retry_at = self._clock() + datetime.timedelta(seconds=delay)
            log.warning("refused, again in %.0f s: %s", delay, applied.rejection, extra=about(key))
            memory.rejection = Rejection(kinds=applied.refused, message=applied.rejection, retry_at=retry_at)
            self._queue.add(key)  # so that status says so
        elif memory.rejection is not None and applied.created & memory.rejection.kinds:
            memory.rejection, memory.rejections = None, 0
        return applied.failure, applied.done

    async def _tell_agents(self, key: NamespacedName, actions: list[PublishSpec | EvictMember | ClearRun]) -> None:
        """Several at once. An etcd that does not answer is waited for once and not for each: the next round asks for
        what is left."""
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

        await asyncio.gather(*(lane() for _ in range(min(AT_ONCE, len(actions)))))

    async def _write_status(
        self, key: NamespacedName, version: str, written: Status, decided: Plan, memory: _Memory, *, done: bool = False
    ) -> None:
        """`version`, `written`: of the job that was decided on; `done`: this round created or deleted something."""
        stories = tuple(dict.fromkeys(memory.untold + decided.events))
        if decided.status != written:
            now = time.monotonic()
            held_since = memory.held_since if memory.unwritten is not None else now
            seconds = seconds_to_hold(
                written, decided.status, now - memory.written_at, done=done, held=now - held_since
            )
            if seconds > 0:
                memory.unwritten, memory.untold, memory.held_since = as_written(decided.status), stories, held_since
                memory.based_on = written
                self._queue.add_at(key, asyncio.get_running_loop().time() + seconds)
                return
            memory.untold = stories  # also where the write fails
            if not await self._send_status(key, version, decided.status, memory):
                return
        memory.unwritten, memory.untold = None, ()
        self._tell(key, memory, stories)

    async def _send_status(self, key: NamespacedName, version: str, status: Status, memory: _Memory) -> bool:
        """False: it was not written, because the job is gone or has changed; then it is decided on anew."""
        if str(self._jobs.version(key)) != version:
            self._queue.add(key)  # changed while this round was under way
            return False
        answer = await self._cluster.write_status(key, memory.uid, version, status.to_api())
        if answer.job is None:
            log.info("the job is gone", extra=about(key))
            self._jobs.remove(key, memory.uid)
            self._queue.add(key)
            return False
        generation = self._jobs.generation(key)
        self._jobs.put(answer.job)
        if not answer.written:
            delay = conflict_wait(memory.conflicts)
            memory.conflicts += 1
            log.info("the status came too late, the job has changed: deciding anew in %.2f s", delay, extra=about(key))
            self._queue.add_at(key, asyncio.get_running_loop().time() + delay)
            return False
        memory.written_at, memory.conflicts = time.monotonic(), 0
        if generation != self._jobs.generation(key):
            self._queue.add(key)  # the watch will tell of that change of the spec as of something known
        return True

    def _tell(self, key: NamespacedName, memory: _Memory, stories: Iterable[JobEvent]) -> None:
        version = str(self._jobs.version(key))
        if memory.told_version != version:
            memory.told_version = version
            memory.told.clear()
        for story in stories:
            log.info("%s: %s", story.reason.value, story.message, extra=about(key, story.reason.value))
            again = memory.told[story]  # the same deed once more, with no status written between
            memory.told[story] += 1
            self._recorder.record(*key, memory.uid, f"{version}.{again}" if again else version, story)

    def _look_again(self, key: NamespacedName, when: datetime.datetime, now: datetime.datetime) -> None:
        delay = (when - now).total_seconds()
        if delay <= 0:
            self._queue.add(key)
        else:
            self._queue.add_at(key, asyncio.get_running_loop().time() + delay)

    async def _refuse(self, key: NamespacedName, error: InvalidJobError) -> None:
        body = self._jobs.body(key)
        if body is None:
            return
        uid = str(body["metadata"]["uid"])
        before = Status.model_validate(body.get("status") or {})
        memory = self._memories.setdefault(key, _Memory(uid=uid))
        await self._write_status(
            key, str(self._jobs.version(key)), before, plan_for_invalid_spec(body, error, self._clock()), memory
        )

    async def _leave(self, key: NamespacedName, uid: str) -> bool:
        """The job was deleted: owner references take its objects; its keys in an etcd of the user's we take ourselves,
        once its agents are gone. False: not yet."""
        view = self._run_watches.view(key)
        if view.connectivity is Connectivity.REACHABLE and not view.empty:
            if self._cluster.has_active_pods(key, uid):
                return False  # their end wakes this key again
            await self._tell_agents(key, [ClearRun(reason="the job was deleted")])
        await self._run_watches.follow(key, None)
        del self._memories[key]
        return True


def rejection_wait(rejections: int, *, longest: float = LONGEST_REJECTION_WAIT) -> float:
    """How long after the last of so many rejections in a row the next try comes, s."""
    return min(longest, FIRST_REJECTION_WAIT * 2.0 ** min(rejections - 1, 10))


def about(key: NamespacedName, reason: str = "") -> dict[str, object]:
    """Which job a log record is about, for kopf's formatters, and why."""
    extra: dict[str, object] = {
        "k8s_ref": {"apiVersion": API_VERSION, "kind": KIND, "namespace": key[0], "name": key[1]}
    }
    return {**extra, "reason": reason} if reason else extra


def _log_actions(key: NamespacedName, actions: Iterable[Action]) -> None:
    """One line for all of a kind and reason: a job of a thousand workers is not told of in a thousand lines."""
    groups: dict[tuple[str, str], list[str]] = {}
    for action in actions:
        groups.setdefault((type(action).__name__, action.reason), []).append(_name(action))
    for (kind, why), names in groups.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        log.info("%s %s%s: %s", kind, ", ".join(names[:NAMED]), more, why, extra=about(key, why))


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
