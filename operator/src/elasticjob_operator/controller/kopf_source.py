"""Watches ElasticJobs with kopf. No handler here decides or writes anything.

Only `on.event` is used: change handlers keep state in annotations and cost two patches a change, daemons and on.delete
add a finalizer (see docs/design/0006-no-finalizer.md). `follow_jobs` restarts kopf when it ends on an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, cast

import aiohttp
import kopf
from elasticjob_api import GROUP, PLURAL, VERSION

from elasticjob_operator.kube import KopfSession, KubeClient

log = logging.getLogger(__name__)

WATCH_SECONDS = 300
PAGE = 100
"""Jobs in one page of a list."""
FIRST_WAIT, LONGEST_WAIT, STEADY_SECONDS = 0.5, 30.0, 60.0
"""Delay before kopf is restarted; it doubles unless kopf ran for `STEADY_SECONDS`."""


class JobChanged(Protocol):
    def __call__(self, body: Mapping[str, Any], /, *, listed: bool) -> None:
        """`listed`: the watch began with this job."""


def register(
    registry: kopf.OperatorRegistry,
    *,
    api: KubeClient,
    changed: JobChanged,
    deleted: Callable[[Mapping[str, Any]], None],
) -> None:
    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server="", aiohttp_session=cast(aiohttp.ClientSession, KopfSession(api)))

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def on_job(event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] == "DELETED":
            deleted(event["object"])
        else:
            changed(event["object"], listed=event["type"] is None)


async def follow_jobs(
    registry: kopf.OperatorRegistry,
    *,
    namespaces: Collection[str],
    stop: asyncio.Event,
    started: Callable[[], None],
    restarting: Callable[[], None],
) -> None:
    """Runs until `stop`. `started()` is called after each start, once kopf has installed its signal handlers, and
    `restarting()` before each restart.

    kopf survives cut connections, 429, 5xx and a 410 within a watch. A plain 410 or 404 in response to a watch request,
    403 for longer than an upgrade takes, or an ERROR event other than 410 end all its tasks. All of these are
    temporary.
    """
    wait = FIRST_WAIT
    while not stop.is_set():
        began = asyncio.get_running_loop().time()
        fault = await _run(registry, namespaces, stop, started)
        if stop.is_set():
            return
        wait = FIRST_WAIT if asyncio.get_running_loop().time() - began > STEADY_SECONDS else min(LONGEST_WAIT, wait * 2)
        log.warning("The watch of ElasticJobs ended, restarting it in %.1f s: %s", wait, fault or "no reason given")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait * random.uniform(0.75, 1.25)):  # noqa: S311 spreads load
                await stop.wait()
        restarting()


async def _run(
    registry: kopf.OperatorRegistry, namespaces: Collection[str], stop: asyncio.Event, started: Callable[[], None]
) -> BaseException | None:
    """Runs until kopf ends; returns why. Not kopf.operator, which cancels every task started since, also ours."""
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )
    started()
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return next((result for result in results if isinstance(result, Exception)), None)


class _NoDiff(kopf.DiffBaseStorage):
    """kopf keeps the last state that change handlers saw, for diffs. There are none here."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("no handler needs this")


class _NoProgress(kopf.ProgressStorage):
    """There are no long-running handlers."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("no handler needs this")

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDiff()
    settings.persistence.progress_storage = _NoProgress()
    settings.posting.enabled = False  # we post our own Events, deduplicated
    settings.scanning.disabled = True  # one resource, known by name: no rights on CRDs and namespaces needed
    settings.peering.standalone = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.watching.chunk_size = PAGE  # thousands of jobs in one response are hundreds of megabytes
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = None  # it would kill the process after kopf ends; ours continues
    return settings
