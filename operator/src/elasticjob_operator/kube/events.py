"""Events of jobs, posted in the background, each once.

The name of an Event is a hash of its content, so posting it again, for example after a restart of the operator, is a
409. An Event that happens again is counted in the one that was posted, and so are too many that differ only in their
text, as client-go does it. Events may be lost: whatever matters is in status.
"""

from __future__ import annotations

import asyncio
import collections
import datetime
import hashlib
import logging
import time
from typing import TypeVar

from elasticjob_api import API_VERSION, KIND
from elasticjob_api.fields import format_time, plain

from elasticjob_operator import names
from elasticjob_operator.kube.api_resources import EVENTS
from elasticjob_operator.kube.cache import Json
from elasticjob_operator.kube.client import (
    MERGE_PATCH,
    ApiError,
    KubeClient,
    NamespaceTerminatingError,
    NotFoundError,
    RejectedError,
)
from elasticjob_operator.planning import JobEvent

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_WAITING_PER_NAMESPACE, MAX_WAITING = 1000, 10_000
"""Events not posted yet; further ones are dropped."""
CONCURRENT_POSTS = 4
"""Namespaces to which Events are posted concurrently."""
MAX_MESSAGE = 1024
"""The API server rejects longer ones."""
MAX_POSTED = 4096
"""Events that are remembered, to be counted when they happen again."""
SIMILAR, SIMILAR_SECONDS = 10, 600.0
"""So many texts for one reason in so much time, s, are one Event."""
COMBINED = "(combined from similar events): "


class _Posted:
    """Posted Events by what makes them the same, the latest last."""

    def __init__(self) -> None:
        self._names: collections.OrderedDict[tuple[str, ...], tuple[str, int]] = collections.OrderedDict()
        self._texts: collections.OrderedDict[tuple[str, ...], dict[str, float]] = collections.OrderedDict()

    def combined(self, body: Json) -> Json:
        """`body`, with the text of a combined Event if there are too many like it."""
        about = _about(body)
        now, texts = time.monotonic(), self._texts.pop(about, {})
        texts = {text: seen for text, seen in texts.items() if now - seen < SIMILAR_SECONDS}
        texts[body["message"]] = now
        _remember(self._texts, about, texts)
        many = len(texts) > SIMILAR
        return {**body, "message": (COMBINED + body["message"])[:MAX_MESSAGE]} if many else body

    def known(self, body: Json) -> tuple[str, int]:
        """(name, count) of the same Event; ("", 0): there is none."""
        return self._names.get(_same(body), ("", 0))

    def add(self, body: Json, name: str, count: int) -> None:
        self._names.pop(_same(body), None)
        _remember(self._names, _same(body), (name, count))


def _about(body: Json) -> tuple[str, ...]:
    return body["involvedObject"]["uid"], body["type"], body["reason"]


def _same(body: Json) -> tuple[str, ...]:
    return *_about(body), COMBINED if body["message"].startswith(COMBINED) else body["message"]


def _remember(known: collections.OrderedDict[tuple[str, ...], T], key: tuple[str, ...], value: T) -> None:
    known[key] = value
    while len(known) > MAX_POSTED:
        known.popitem(last=False)


class EventRecorder:
    """`run` until cancelled. Posts one Event per namespace at a time, and namespaces take turns, so that neither the
    failures of one tenant nor a hanging webhook delay the Events of another."""

    def __init__(self, api: KubeClient) -> None:
        self._client = api
        self._waiting: dict[str, collections.deque[Json]] = {}
        """By namespace, including the one being posted."""
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        """Namespaces with Events, none of which is being posted."""
        self._count = 0
        self._posted = _Posted()

    def record(self, namespace: str, job: str, uid: str, version: str, event: JobEvent) -> None:
        """`version`: resourceVersion of the job after the change that the Event reports. The same text with a later
        version is another Event."""
        waiting = self._waiting.setdefault(namespace, collections.deque())
        if not waiting:
            self._ready.put_nowait(namespace)
        if not waiting or (self._count < MAX_WAITING and len(waiting) < MAX_WAITING_PER_NAMESPACE):
            waiting.append(
                event_body(namespace, job, uid, version, event, datetime.datetime.now(datetime.timezone.utc))
            )
            self._count += 1

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENT_POSTS):
                group.create_task(self._post_in_turn())

    async def _post_in_turn(self) -> None:
        while True:
            namespace = await self._ready.get()
            waiting = self._waiting[namespace]
            await self._post(waiting[0])
            waiting.popleft()
            self._count -= 1
            if waiting:
                self._ready.put_nowait(namespace)
            else:
                del self._waiting[namespace]

    async def _post(self, body: Json) -> None:
        body = self._posted.combined(body)
        try:
            if not await self._count_again(body):
                await self._client.request("POST", EVENTS.path(body["metadata"]["namespace"]), body=body)
                self._posted.add(body, body["metadata"]["name"], 1)
        except (ApiError, ConnectionError) as error:
            told = isinstance(error, NamespaceTerminatingError) or getattr(error, "status", 0) in (404, 409)
            level = logging.DEBUG if told else logging.WARNING
            log.log(level, "Cannot post Event %s of %s: %s", body["reason"], body["involvedObject"]["name"], error)

    async def _count_again(self, body: Json) -> bool:
        """False: it was not posted before, or that Event has expired."""
        name, count = self._posted.known(body)
        if not name:
            return False
        patch = {"count": count + 1, "lastTimestamp": body["lastTimestamp"], "message": body["message"]}
        path = EVENTS.path(body["metadata"]["namespace"], name)
        try:
            await self._client.request("PATCH", path, body=patch, content_type=MERGE_PATCH)
        except (NotFoundError, RejectedError):
            return False
        self._posted.add(body, name, count + 1)
        return True


def event_body(namespace: str, job: str, uid: str, version: str, event: JobEvent, now: datetime.datetime) -> Json:
    digest = hashlib.sha256("\0".join((uid, version, event.reason.value, event.message)).encode()).hexdigest()[:16]
    moment = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job}.{digest}", "namespace": namespace},
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, "namespace": namespace, "name": job, "uid": uid},
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason.value,
        "message": plain(event.message)[:MAX_MESSAGE],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
