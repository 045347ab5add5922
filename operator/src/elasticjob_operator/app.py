"""The operator put together: who calls whom. Started by `__main__`, and by nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Mapping
from typing import Any

import kopf

from elasticjob_operator.cluster import Api, ApiError, Cluster, Connection, Key, NotFoundError, Teller, list_job_versions
from elasticjob_operator.handlers import kopf_settings, register
from elasticjob_operator.health import Health
from elasticjob_operator.reconciler import Audit, Jobs, KeyedQueue, Reconciler, key_of
from elasticjob_operator.rendezvous import Sessions
from elasticjob_operator.settings import Settings

log = logging.getLogger(__name__)

CRD_SECONDS = 5.0
"""How often to look whether the ElasticJob CRD is installed, s."""


class App:
    """`run` until SIGTERM, SIGINT or a fault; returns the exit code."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._fault = ""
        self._silent_watch = False
        self._queue: KeyedQueue[Key] = KeyedQueue()
        self._jobs = Jobs()
        self._sessions = Sessions(self._queue.add)
        self._audit: Audit | None = None
        self._ready = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        connection = await Connection.open()
        api = Api(connection.client())
        self._cluster = Cluster(api, self._settings, self._queue.add)
        health = Health(self._settings.probe_port, self._faults, lambda: self._ready)
        await health.start()
        log.info("probes on port %d", health.port)
        try:
            await self._until_stopped(self._start(api))
            if not self._stop.is_set():
                await self._follow_jobs(connection)
        finally:
            await self._end()
            await health.stop()
            await api.close()
            await connection.close()
        return 1 if self._fault else 0

    async def _start(self, api: Api) -> None:
        """Everything but kopf: when the first job comes, the cluster is known."""
        await self._wait_for_crd(api)
        teller = Teller(api)
        for informer in self._cluster.informers:
            self._background(informer.run(), f"informer of {informer}")
        await self._cluster.synced()
        reconciler = Reconciler(self._settings, self._jobs, self._cluster, self._sessions, teller, self._queue)
        audit = self._audit = Audit(
            api,
            self._jobs,
            self._queue,
            namespaces=self._settings.namespaces,
            seconds=self._settings.resync_seconds,
            on_dead=self._on_silent_watch,
        )
        self._background(teller.run(), "teller")
        self._background(self._queue.work(reconciler.reconcile, self._settings.workers), "reconcilers")
        self._background(audit.run(), "audit")
        self._ready = True

    async def _wait_for_crd(self, api: Api) -> None:
        while True:
            try:
                for namespace in self._settings.namespaces or ("",):
                    await list_job_versions(api, namespace)
                return
            except NotFoundError:
                log.error("the CRD elasticjobs.elasticjob.dev is not installed; waiting for it")
            except (ApiError, ConnectionError) as error:
                log.error("cannot list ElasticJobs, trying again: %s", error)
            await asyncio.sleep(CRD_SECONDS)

    async def _follow_jobs(self, connection: Connection) -> None:
        registry = kopf.OperatorRegistry()
        register(registry, connection=connection, changed=self._on_job, deleted=self._on_deleted_job, stop=self._end)
        await kopf.operator(
            registry=registry,
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            stop_flag=self._stop,
        )

    def _on_job(self, body: Mapping[str, Any]) -> None:
        key = self._heard_of(body)
        if self._jobs.put(body):
            self._queue.add(key)

    def _heard_of(self, body: Mapping[str, Any]) -> Key:
        key = key_of(body)
        if self._audit is not None:
            self._audit.heard(key)
        return key

    def _on_deleted_job(self, body: Mapping[str, Any]) -> None:
        key = self._heard_of(body)
        if self._jobs.remove(key, body["metadata"]["uid"]):
            self._queue.add(key)

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """None of them ever ends by itself: one that did is a bug, and a fresh start is the cure."""
        if task.cancelled():
            return
        self._fault = f"{task.get_name()} ended"
        log.critical("%s: stopping, to be started afresh", self._fault, exc_info=task.exception())
        self._stop.set()

    def _on_silent_watch(self) -> None:
        self._silent_watch = True

    def _faults(self) -> list[str]:
        faults = [f"the informer of {informer} hangs" for informer in self._cluster.informers if informer.stuck]
        if self._silent_watch:
            faults.append("kopf's watch of ElasticJobs brings no news")
        return faults

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, but not beyond the signal to stop."""
        task = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _end(self) -> None:
        """Idempotent: kopf calls it when it ends, and `run` in any case."""
        self._stop.set()  # kopf waits for its own waiter of this flag
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sessions.close()
