"""The periodic resync: compares the cached jobs with the API server's, and requeues those that differ. The others are
requeued too, but only every tenth time: thousands of jobs that need nothing cost little else.

kopf's watch reports changes at once, but not the deletion of a job while it was disconnected, and a watch can go
silent. The resync lists names and versions only (PartialObjectMetadata) and corrects differences. A watch that misses
changes repeatedly is dead, which the liveness probe reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.controller.work_queue import WorkQueue
from elasticjob_operator.kube import ApiError, KubeClient, NotFoundError, list_job_versions, read_job
from elasticjob_operator.names import NamespacedName

log = logging.getLogger(__name__)

DEAD_AFTER = 3
"""Resyncs in a row that found changes which the watch had missed, without an event from it in between."""

TURNS = 10
"""In so many resyncs, every job is requeued once."""

RESTART_SECONDS = 2.0
"""Delay of a resync after a watch was restarted, s: time for it to list the jobs."""


class Resync:
    """`run` until cancelled."""

    def __init__(
        self,
        api: KubeClient,
        jobs: JobCache,
        queue: WorkQueue[NamespacedName],
        *,
        namespaces: tuple[str, ...],
        seconds: float,
        on_dead: Callable[[], None],
    ) -> None:
        self._client = api
        self._jobs = jobs
        self._queue = queue
        self._namespaces = namespaces or ("",)
        self._seconds = seconds
        self._on_dead = on_dead
        self._unconfirmed: dict[NamespacedName, int] = {}
        """Jobs of which the last resync saw a newer version than the watch, and that version."""
        self._missed: dict[str, int] = {}
        """By watch (one for each namespace, or one for all): resyncs that found missed changes since its last event."""

        self._hurry = asyncio.Event()
        self._hurried = 0
        self._turn = 0

    def on_watch_restarted(self) -> None:
        """The watch was restarted: two resyncs confirm which jobs were deleted in the meantime."""
        self._hurried = 2
        self._hurry.set()

    async def run(self) -> None:
        while True:
            await self._wait()
            try:
                await self._compare()
            except (ApiError, ConnectionError) as error:
                log.warning("Cannot list ElasticJobs: %s", error)
            self._requeue_some()

    async def _wait(self) -> None:
        if not self._hurried:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds * random.uniform(0.9, 1.1)):  # noqa: S311 spreads load
                    await self._hurry.wait()
        if self._hurried:
            self._hurry.clear()
            self._hurried -= 1
            await asyncio.sleep(min(RESTART_SECONDS, self._seconds))

    def on_watch_event(self, key: NamespacedName) -> None:
        """The watch delivered an event of that job."""
        self._missed.pop(self._watch_of(key), None)

    def _watch_of(self, key: NamespacedName) -> str:
        return key[0] if key[0] in self._namespaces else ""

    def _requeue_some(self) -> None:
        """Requeues a share of all jobs, spread over half of the interval."""
        now, self._turn = asyncio.get_running_loop().time(), (self._turn + 1) % TURNS
        for key in self._jobs:
            if hash(key) % TURNS == self._turn:
                self._queue.add_at(key, now + random.uniform(0, self._seconds / 2))  # noqa: S311 spreads load

    async def _compare(self) -> None:
        listed: dict[NamespacedName, tuple[str, int]] = {}
        for namespace in self._namespaces:
            listed |= await list_job_versions(self._client, namespace)
        behind = {key: version for key, (_, version) in listed.items() if self._jobs.version(key) < version}
        missed = [key for key, version in behind.items() if self._unconfirmed.get(key) == version]
        vanished = [key for key in self._jobs if key not in listed and key in self._unconfirmed]
        self._unconfirmed = {**behind, **{key: -1 for key in self._jobs if key not in listed}}
        for key in missed:
            log.warning("The watch missed a change of %s/%s", *key)
            await self._read(key)
        for key in vanished:
            log.warning("The watch missed the deletion of %s/%s", *key)
            self._forget(key)
        for watch in {self._watch_of(key) for key in missed}:
            self._missed[watch] = self._missed.get(watch, 0) + 1
            if self._missed[watch] >= DEAD_AFTER:
                self._on_dead()

    async def _read(self, key: NamespacedName) -> None:
        try:
            self._jobs.put(await read_job(self._client, key))
        except NotFoundError:
            self._forget(key)
        self._queue.add(key)

    def _forget(self, key: NamespacedName) -> None:
        self._jobs.remove(key, self._jobs.uid(key))
        self._unconfirmed.pop(key, None)
        self._queue.add(key)
