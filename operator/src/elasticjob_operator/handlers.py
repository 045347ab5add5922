"""What kopf does for us: it watches ElasticJobs and ends cleanly. No handler here decides or writes anything.

`on.event` alone: change handlers keep state in annotations and cost two patches a change, daemons and on.delete add a finalizer (see
docs/design/no-finalizer.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from elasticjob_operator.api import GROUP, PLURAL, VERSION
from elasticjob_operator.cluster import Connection

WATCH_SECONDS = 300


def register(
    registry: kopf.OperatorRegistry,
    *,
    connection: Connection,
    changed: Callable[[Mapping[str, Any]], None],
    deleted: Callable[[Mapping[str, Any]], None],
    stop: Callable[[], Awaitable[None]],
) -> None:
    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection.for_kopf()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def on_job(event: kopf.RawEvent, **_: Any) -> None:
        (deleted if event["type"] == "DELETED" else changed)(event["object"])

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await stop()


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # we post our own Events, deduplicated
    settings.scanning.disabled = True  # one resource, known by name: no rights on CRDs and namespaces needed
    settings.peering.standalone = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.queueing.exit_timeout = 0.5
    settings.process.ultimate_exiting_timeout = 10.0
    return settings
