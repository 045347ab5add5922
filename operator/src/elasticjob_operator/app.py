"""The operator's composition root: creates its components and connects them. Started by `__main__`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import kopf
from elasticjob_runtime.etcd import Unavailable

from elasticjob_operator import metrics
from elasticjob_operator.controller import JobCache, JobEvents, ProgressWriter, Reconciler, Resync, WorkQueue
from elasticjob_operator.controller.kopf_source import follow_jobs, register
from elasticjob_operator.credentials import EtcdCredentials
from elasticjob_operator.etcd import RunUsers, RunWatches, Tiers
from elasticjob_operator.health import Health, ServerCertificate
from elasticjob_operator.kube import (
    ApiError,
    CertificatesUnavailable,
    Cluster,
    Credentials,
    EtcdSecrets,
    EventRecorder,
    KubeClient,
    LeaseTerms,
    MetricsAccess,
    NotFoundError,
    OperatorCertificates,
    ShardLeases,
    TierSecrets,
    list_job_versions,
)
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.policies.shards import takeover_order
from elasticjob_operator.settings import Settings, SettingsError
from elasticjob_operator.tasks import Supervisor

log = logging.getLogger(__name__)

CRD_SECONDS = 5.0
"""Seconds between checks whether the ElasticJob CRD is installed."""

REST_PER_POD, LONGEST_REST = 0.0005, 0.5
"""Pause between reconciliations of a job, seconds: one costs about 5 us of CPU for each pod, and the start of a
thousand pods causes five thousand events."""


class App:
    """`run` returns the exit code after SIGTERM, SIGINT or a fault."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._fault = ""
        self._supervisor = Supervisor(self._on_fault)
        self._silent_watch = False
        self._queue: WorkQueue[NamespacedName] = WorkQueue(
            lambda key: min(LONGEST_REST, self._cluster.pod_count(key) * REST_PER_POD),
            lambda key: self._leads(key) or (self._reconciler is not None and self._reconciler.remembers(key)),
        )
        self._leases: ShardLeases | None = None
        """None: this operator leads all jobs."""
        self._reconciler: Reconciler | None = None
        self._jobs = JobCache(self._shard_of, lambda: self._leases.led if self._leases is not None else None)
        self._run_watches = RunWatches(
            self._queue.add,
            progressed=self._on_report,
            may_write=self._may_write,
            supervisor=self._supervisor,
            tls=self._tls_of_etcds,
            read_secret=self._read_secret,
        )
        self._job_events: JobEvents | None = None
        self._watching = False
        self._synced = False

    async def run(self) -> int:
        self._handle_signals()
        credentials = await Credentials.open()
        api = KubeClient(credentials.client(), self._may_write)
        own_api = KubeClient(credentials.client())  # for what a standby may write too
        self._certificates = OperatorCertificates(
            own_api, self._settings.ca_namespace, self._settings.ca_name, create=self._settings.etcd_tls
        )
        self._etcd_secrets = EtcdSecrets(api, self._settings.endpoint_secret, RunUsers(self._run_watches.call))
        self._cluster = Cluster(
            api,
            self._settings,
            self._queue.add,
            self._certificates.for_etcd,
            self._etcd_secrets,
            changed_all=self._reconcile_all,
        )
        tier_secrets = TierSecrets(own_api, self._settings, self._certificates)
        self._tiers = Tiers(
            self._settings,
            tier_secrets.prepare,
            self._read_secret,
            self._jobs.runs_in_tiers,
            cleans=lambda: self._leases is None or 0 in self._leases.led,
            uids=lambda: self._list_uids(api),
        )
        self._leases = self._shard_leases(own_api)
        health = self._health(own_api)
        await health.start()
        log.info("Serving probes on port %d and metrics on port %d", health.port, health.metrics_port)
        stop_counting = self._count()
        self._supervisor.start(credentials.follow_ca(), "renewal of the certificate authority")
        try:
            await self._until_stopped(self._start(api))
            if self._job_events is not None and not self._stop.is_set():
                await self._follow_jobs(api, self._job_events)
        finally:
            await self._stop_all()
            if self._leases is not None:
                await self._leases.release()
            stop_counting()
            await health.stop()
            await api.close()
            await own_api.close()
            await credentials.close()
        return 1 if self._fault else 0

    def _health(self, api: KubeClient) -> Health:
        """`api`: for reviews of tokens. A standby needs it too, and a review writes nothing."""
        settings = self._settings
        certificate = None
        if settings.metrics_certificate:
            try:
                certificate = ServerCertificate(Path(settings.metrics_certificate))
            except OSError as error:  # also what ssl raises
                raise SettingsError(f"ELASTICJOB_METRICS_CERTIFICATE: no certificate for /metrics: {error}") from error
            self._supervisor.start(certificate.follow(), "renewal of the certificate of the metrics")
        access = MetricsAccess(api) if settings.metrics_authentication else None
        return Health(
            settings.probe_port, self._faults, self._readiness, access, certificate, metrics_port=settings.metrics_port
        )

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    def _may_write(self) -> bool:
        return self._leases is None or self._leases.may_write()

    def _leads(self, key: NamespacedName) -> bool:
        return self._leases is None or self._leases.leads(key)

    def _shard_of(self, key: NamespacedName) -> int:
        return self._leases.shard_of(key) if self._leases is not None else 0

    def _shard_leases(self, api: KubeClient) -> ShardLeases | None:
        settings = self._settings
        if not settings.lease_namespace:
            return None
        identity = settings.lease_identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
        return ShardLeases(
            api,
            settings.lease_namespace,
            settings.lease_name,
            identity,
            LeaseTerms(duration=settings.lease_seconds),
            settings.shards,
            changed=self._on_shard,
            busy=lambda shard: any(self._shard_of(key) == shard for key in self._queue.processing),
        )

    def _on_shard(self, shard: int, leads: bool) -> None:
        """This operator has begun or ceased to lead the shard."""
        remembered = self._reconciler.remembered if self._reconciler is not None else ()
        changed_at = {
            key: self._queue.refused_at(key)
            for key in (self._jobs if leads else remembered)
            if self._shard_of(key) == shard
        }
        first, others = takeover_order(changed_at, now=time.monotonic(), lease_seconds=self._settings.lease_seconds)
        for key in first:
            self._queue.add(key)
        for key in others:
            (self._queue.add_later if leads else self._queue.add)(key)
        led = len(self._leases.led) if self._leases is not None else 1
        self._progress.set_share(led / (self._leases.count if self._leases is not None else 1))
        metrics.LEADER.set(led > 0)
        metrics.SHARD_LEADER.labels(str(shard)).set(leads)
        if leads:
            metrics.SHARD_JOBS.labels(str(shard)).set_function(lambda: self._jobs.count(shard))
        else:
            metrics.SHARD_JOBS.remove(str(shard))

    def _tls_of_etcds(self) -> ssl.SSLContext:
        """Raises Unavailable."""
        try:
            return self._certificates.context()
        except CertificatesUnavailable as error:
            raise Unavailable(str(error)) from error

    async def _read_secret(self, secret: NamespacedName) -> EtcdCredentials:
        """Raises StoreError."""
        return await self._etcd_secrets.read(secret)

    async def _list_uids(self, api: KubeClient) -> set[str]:
        """Of all jobs, from the API server. Raises StoreError."""
        try:
            found = [await list_job_versions(api, namespace) for namespace in self._settings.namespaces or ("",)]
        except (ApiError, ConnectionError) as error:
            raise Unavailable(f"cannot list ElasticJobs: {error}") from error
        return {uid for jobs in found for uid, _ in jobs.values()}

    def _count(self) -> Callable[[], None]:
        metrics.LEADER.set(0)
        metrics.QUEUE_DEPTH.set_function(lambda: len(self._queue))
        metrics.QUEUE_AGE.set_function(lambda: self._queue.age)
        return metrics.count_jobs(lambda: self._jobs.conditions, lambda: self._jobs.seconds, lambda: self._jobs.below)

    async def _start(self, api: KubeClient) -> None:
        """Starts everything except kopf, so that the caches are synced before the first job arrives."""
        if self._stop.is_set():
            return
        await _wait_for_crd(self._settings, api)
        if not await self._certificates.open():
            # Jobs that use another etcd do not need it.
            self._supervisor.start(self._certificates.keep_trying(), "reading of the certificate authority of etcds")
        recorder = EventRecorder(api)
        self._watching = True
        for informer in self._cluster.informers:
            self._supervisor.start(informer.run(), f"informer of {informer}")
        for optional in self._cluster.optional:
            self._supervisor.start(optional.run(), f"discovery of {optional}")
        await asyncio.gather(*(optional.started() for optional in self._cluster.optional))
        await self._cluster.synced()
        gc.collect()  # of what the lists of all objects have left behind, before jobs are reconciled
        self._progress = ProgressWriter(self._settings, self._jobs, self._queue, self._cluster, self._run_watches.view)
        self._progress.count()
        self._reconciler = Reconciler(
            self._settings,
            self._jobs,
            self._cluster,
            self._run_watches,
            recorder,
            self._queue,
            self._progress,
            leads=self._leads,
            tiers=lambda: self._tiers.views,
        )
        resync = Resync(
            api,
            self._jobs,
            self._queue,
            namespaces=self._settings.namespaces,
            seconds=self._settings.resync_seconds,
            on_dead=self._on_silent_watch,
        )
        self._supervisor.start(recorder.run(), "event recorder")
        self._supervisor.start(self._queue.work(self._reconciler.reconcile, self._settings.workers), "reconcilers")
        self._supervisor.start(resync.run(), "resync")
        self._supervisor.start(self._progress.statuses.run(), "progress in statuses")
        self._supervisor.start(self._progress.objects.run(), "progress beside the jobs")
        self._supervisor.start(self._progress.watch_stalls(), "stalls")
        self._supervisor.start(metrics.measure_loop_lag(), "measurement of the event loop")
        self._job_events = JobEvents(self._jobs, self._queue, resync, self._leads)
        if self._leases is not None:
            self._supervisor.start(self._leases.run(), "leadership")
        else:
            self._on_shard(0, leads=True)
        for tier in self._settings.etcd_tiers.tiers:
            self._supervisor.start(self._tiers.follow(tier), f"etcd tier {tier.name}")
        self._synced = True

    async def _follow_jobs(self, api: KubeClient, events: JobEvents) -> None:
        registry = kopf.OperatorRegistry()
        register(registry, api=api, changed=events.changed, deleted=events.deleted)
        await follow_jobs(
            registry,
            namespaces=self._settings.namespaces,
            stop=self._stop,
            started=self._handle_signals,
            restarting=events.restarted,
        )

    def _on_report(self, key: NamespacedName) -> None:
        """Called only for jobs that a reconciliation follows."""
        self._progress.on_report(key)

    def _reconcile_all(self) -> None:
        """Not only jobs in a queue: it happens when Kueue, a flavor or a priority class changes. Few of them are
        concerned, so others come first."""
        for key in self._jobs:
            self._queue.add_later(key)

    def _on_fault(self, fault: str) -> None:
        """Stops the operator, so that its container is restarted."""
        self._fault = fault
        self._stop.set()

    def _on_silent_watch(self) -> None:
        self._silent_watch = True

    def _faults(self) -> list[str]:
        informers = self._cluster.informers if self._watching else ()
        faults = list(self._supervisor.faults)
        faults += [f"the informer of {informer} is stuck" for informer in informers if informer.stuck]
        if self._silent_watch:
            faults.append("kopf's watch of ElasticJobs delivers no events")
        return faults

    def _readiness(self) -> tuple[bool, str]:
        if not self._synced:
            return False, "starting"
        if self._leases is None:
            return True, "ok"
        return self._leases.observed_recently, "ok" if self._leases.led else f"standby: {self._leases.status}"

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` until it returns or the operator must stop."""
        task = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _stop_all(self) -> None:
        self._stop.set()
        await self._supervisor.stop_all()
        await self._run_watches.close()


async def _wait_for_crd(settings: Settings, api: KubeClient) -> None:
    while True:
        try:
            for namespace in settings.namespaces or ("",):
                await list_job_versions(api, namespace)
            return
        except NotFoundError:
            log.error("The CRD elasticjobs.elasticjob.dev is not installed; waiting for it")
        except (ApiError, ConnectionError) as error:
            log.error("Cannot list ElasticJobs, retrying: %s", error)
        await asyncio.sleep(CRD_SECONDS)
