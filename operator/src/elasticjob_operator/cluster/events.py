"""Events about jobs: posted in the background, each once.

An Event's name is made of what it tells, so telling it again - after a restart of the operator, say - is a 409. Losing one harms nobody:
what matters is in status.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import logging
from typing import Any

from elasticjob_operator import names
from elasticjob_operator.api import API_VERSION, KIND
from elasticjob_operator.api.fields import format_time
from elasticjob_operator.cluster.api import Api, ApiError, NamespaceGoesError
from elasticjob_operator.cluster.resources import EVENTS
from elasticjob_operator.planning import Story

log = logging.getLogger(__name__)

WAITING = 1000
LONGEST_MESSAGE = 1024
"""The API server refuses longer ones."""


class Teller:
    """`run` until cancelled."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING)

    def tell(self, namespace: str, job: str, uid: str, version: str, story: Story) -> None:
        """`version`: resourceVersion of the job after the change that the story is about: the same words later are another Event."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(event(namespace, job, uid, version, story, datetime.datetime.now(datetime.timezone.utc)))

    async def run(self) -> None:
        while True:
            body = await self._queue.get()
            try:
                await self._api.request("POST", EVENTS.path(body["metadata"]["namespace"]), body=body)
            except (ApiError, ConnectionError) as error:
                told = isinstance(error, NamespaceGoesError) or getattr(error, "status", 0) in (404, 409)
                level = logging.DEBUG if told else logging.WARNING
                log.log(level, "Event %s of %s not posted: %s", body["reason"], body["involvedObject"]["name"], error)


def event(namespace: str, job: str, uid: str, version: str, story: Story, now: datetime.datetime) -> dict[str, Any]:
    digest = hashlib.sha256("\0".join((uid, version, story.reason.value, story.message)).encode()).hexdigest()[:16]
    moment = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job}.{digest}", "namespace": namespace},
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, "namespace": namespace, "name": job, "uid": uid},
        "type": "Warning" if story.warning else "Normal",
        "reason": story.reason.value,
        "message": story.message[:LONGEST_MESSAGE],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
