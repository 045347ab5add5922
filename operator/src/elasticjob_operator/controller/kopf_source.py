"""What kopf does for us: it watches ElasticJobs. No handler here decides or writes anything.

`on.event` alone: change handlers keep state in annotations and cost two patches a change, daemons and on.delete add a
finalizer (see docs/design/0006-no-finalizer.md). kopf ends where it meets what it takes for the end of the world;
`follow_jobs` begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

import kopf

from elasticjob_operator.api import GROUP, PLURAL, VERSION
from elasticjob_operator.kube import Credentials

log = logging.getLogger(__name__)

WATCH_SECONDS = 300
PAGE = 100
"""Jobs in one page of a list."""
FIRST_WAIT, LONGEST_WAIT, STEADY_SECONDS = 0.5, 30.0, 60.0
"""Before kopf is begun anew; the wait doubles unless it went well for so long, s."""


def register(
    registry: kopf.OperatorRegistry,
    *,
    credentials: Credentials,
    changed: Callable[[Mapping[str, Any]], None],
    deleted: Callable[[Mapping[str, Any]], None],
) -> None:
    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await credentials.for_kopf()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def on_job(event: kopf.RawEvent, **_: Any) -> None:
        (deleted if event["type"] == "DELETED" else changed)(event["object"])


async def follow_jobs(
    registry: kopf.OperatorRegistry,
    *,
    namespaces: Collection[str],
    stop: asyncio.Event,
    started: Callable[[], None],
    again: Callable[[], None],
) -> None:
    """Until `stop`. `started()` after each start, by when kopf has taken the signal handlers; `again()` before each but
    the first.

    kopf lives through cut connections, 429, 5xx and a 410 within a watch. A plain 410 or 404 in answer to one, 403 for
    longer than an upgrade takes, or an ERROR in a watch that is no 410 end all its tasks. All of that passes, and the
    jobs must not suffer for it.
    """
    wait = FIRST_WAIT
    while not stop.is_set():
        began = asyncio.get_running_loop().time()
        fault = await _run(registry, namespaces, stop, started)
        if stop.is_set():
            return
        wait = FIRST_WAIT if asyncio.get_running_loop().time() - began > STEADY_SECONDS else min(LONGEST_WAIT, wait * 2)
        log.warning(
            "the watch of ElasticJobs ended, beginning it anew in %.1f s: %s",
            wait,
            fault or "for no reason that it told",
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait * random.uniform(0.75, 1.25)):  # noqa: S311 spreads load
                await stop.wait()
        again()


async def _run(
    registry: kopf.OperatorRegistry, namespaces: Collection[str], stop: asyncio.Event, started: Callable[[], None]
) -> BaseException | None:
    """Until kopf ends; returns why. Not kopf.operator: that takes every task begun since for its own, and cancels it in
    the end."""
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
    return next((each for each in results if isinstance(each, Exception)), None)


class _NoDiff(kopf.DiffBaseStorage):
    """For each event kopf compares an object with how it was when change handlers last saw it. We have none: nothing to
    copy or compare."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("no handler needs this")


class _NoProgress(kopf.ProgressStorage):
    """Of handlers that go on for long: none."""

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
    settings.watching.chunk_size = (
        PAGE  # all jobs in one answer are hundreds of megabytes where there are thousands of them
    )
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = None  # it kills the process after kopf has ended; ours goes on
    return settings
