"""The safety net: every job is looked at again now and then, and the list of jobs is compared with the API server's.

kopf's watch tells of changes at once, but not of a job that vanished while it was disconnected, and a watch can fall
silent. The audit lists names and versions only (PartialObjectMetadata). What it finds it repairs; a watch that misses
changes again and again is dead, which the liveness probe reports.
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
"""Audits that found what a watch had not told of, without one word from that watch in between."""

HURRY_SECONDS = 2.0
"""Between audits after a watch was begun anew: time for it to tell what there is."""


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
        self._suspects: dict[NamespacedName, int] = {}
        """Jobs of which the last audit knew more than the watch, and the version it saw."""
        self._missed: dict[str, int] = {}
        """By watch (one for each namespace, or one for all): audits with findings since it last told anything."""

        self._hurry = asyncio.Event()
        self._hurried = 0

    def hurry(self) -> None:
        """The watch was begun anew: what vanished meanwhile takes two audits to be sure of."""
        self._hurried = 2
        self._hurry.set()

    async def run(self) -> None:
        while True:
            await self._rest()
            try:
                await self._audit()
            except (ApiError, ConnectionError) as error:
                log.warning("cannot list ElasticJobs: %s", error)
            self._resync()

    async def _rest(self) -> None:
        if not self._hurried:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds * random.uniform(0.9, 1.1)):  # noqa: S311 spreads load
                    await self._hurry.wait()
        if self._hurried:
            self._hurry.clear()
            self._hurried -= 1
            await asyncio.sleep(min(HURRY_SECONDS, self._seconds))

    def heard(self, key: NamespacedName) -> None:
        """The watch told of that job."""
        self._missed.pop(self._watch_of(key), None)

    def _watch_of(self, key: NamespacedName) -> str:
        return key[0] if key[0] in self._namespaces else ""

    def _resync(self) -> None:
        """All jobs, spread over a part of the interval."""
        now = asyncio.get_running_loop().time()
        for key in self._jobs:
            self._queue.add_at(key, now + random.uniform(0, self._seconds / 2))  # noqa: S311 spreads load

    async def _audit(self) -> None:
        listed: dict[NamespacedName, tuple[str, int]] = {}
        for namespace in self._namespaces:
            listed |= await list_job_versions(self._client, namespace)
        behind = {key: version for key, (_, version) in listed.items() if self._jobs.version(key) < version}
        missed = [key for key, version in behind.items() if self._suspects.get(key) == version]
        vanished = [key for key in self._jobs if key not in listed and key in self._suspects]
        self._suspects = {**behind, **{key: -1 for key in self._jobs if key not in listed}}
        for key in missed:
            log.warning("%s/%s: changed, and the watch did not tell", *key)
            await self._read(key)
        for key in vanished:
            log.warning("%s/%s: gone, and the watch did not tell", *key)
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
        self._suspects.pop(key, None)
        self._queue.add(key)
