"""List and watch of one resource into a cache: what client-go calls a reflector. Why our own:
docs/design/0009-operator-scale.md.

    list in pages -> replace -> watch from there -> (stream ends) watch from the last version seen -> (410) list again

A list replaces everything, so objects deleted while the watch was down are removed.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from elasticjob_operator.kube.api_resources import ApiResource
from elasticjob_operator.kube.cache import Json, ObjectCache, version_of
from elasticjob_operator.kube.client import ApiError, GoneError, KubeClient, RejectedError, error_of, json_lines

log = logging.getLogger(__name__)

PAGE = 200
"""A pod takes some 30 KB while it is parsed: a page 6 MB."""
WATCH_SECONDS = 300
"""The server ends a watch after this time, and the next one resumes: this spreads the load over several API servers."""
SILENCE_SECONDS = 90.0
"""A stream without a byte, not even a bookmark (about one a minute), is reopened: its connection may be dead."""
FIRST_WAIT, LONGEST_WAIT = 0.2, 15.0
SHORT_SECONDS = 1.0
"""A watch that ends sooner without events counts as a failure: the server may be shutting down."""
STUCK_SECONDS = 240.0
"""An informer without any activity for this long, even failures, hangs: longer than every wait above."""


class Informer:
    """`run` until cancelled. `optional`: if access is forbidden, the cache stays empty and `forbidden` is set.
    `may_exist`: whether to keep an object that is reported as deleted, because it may only have lost its labels."""

    def __init__(
        self,
        api: KubeClient,
        resource: ApiResource,
        store: ObjectCache[Any],
        *,
        namespace: str = "",
        selector: str = "",
        optional: bool = False,
        may_exist: Callable[[Json], bool] = lambda _: False,
    ) -> None:
        self._client = api
        self._resource = resource
        self._store = store
        self._namespace = namespace
        self._selector = selector
        self._optional = optional
        self._may_exist = may_exist
        self._path = resource.path(namespace)
        self._version = 0
        self._failures = 0
        self._alive_at = time.monotonic()
        self.synced = asyncio.Event()
        """The first list is in the cache, or is forbidden."""
        self.forbidden = False
        self.watching_since: datetime.datetime | None = None
        """Since when it has been watching without a gap. None: it is not watching now."""

    def __str__(self) -> str:
        return f"{self._resource.plural} of {self._namespace or 'all namespaces'}"

    @property
    def stuck(self) -> bool:
        """It hangs."""
        return time.monotonic() - self._alive_at > STUCK_SECONDS

    def on_written(self, body: Json) -> None:
        """The response to our own write. Ignored where the watch is ahead of it."""
        if version_of(body) > self._version:
            self._store.put(body)

    async def run(self) -> None:
        while True:
            self._alive_at = time.monotonic()
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                if time.monotonic() - self._alive_at < SHORT_SECONDS:
                    await self._wait()
            except GoneError:
                self.watching_since = None
                log.info("Listing %s again: version %d is too old", self, self._version)
                self._version = 0
                await self._wait()  # a server that expires versions at once must not be listed in a loop
            except RejectedError as error:
                self.watching_since = None
                self._on_rejected(error)
                await self._wait()
            except (ApiError, ConnectionError) as error:
                self.watching_since = None
                log.log(logging.WARNING if self._failures == 3 else logging.DEBUG, "Cannot watch %s: %s", self, error)
                await self._wait()

    def _on_rejected(self, error: RejectedError) -> None:
        if error.status == 403 and self._optional:
            if not self.forbidden:
                log.warning("Watching %s is forbidden, continuing without: %s", self, error)
            self.forbidden = True
            self.synced.set()
            self._failures = 10
            return
        log.error("Cannot watch %s: %s", self, error)

    async def _wait(self) -> None:
        delay = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._failures, 10))
        self._failures += 1
        await asyncio.sleep(delay * random.uniform(0.75, 1.25))  # noqa: S311 spreads load

    async def _list(self) -> None:
        """Reads all pages of one resourceVersion, holding one at a time. If that version expires meanwhile (410), the
        list starts again."""
        replacement = self._store.replacement(self._namespace)
        version = 0
        async for page in self._client.pages(self._path, self._query(), size=PAGE):
            self._alive_at = time.monotonic()
            replacement.add(page.get("items") or [])
            version = version_of(page)
            del page  # not two at once
        replacement.finish(version)
        self._version = version
        self.forbidden = False
        self.synced.set()

    async def _watch(self) -> None:
        seconds = int(WATCH_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 spreads load
        query = self._query(
            watch="true", allowWatchBookmarks="true", resourceVersion=str(self._version), timeoutSeconds=str(seconds)
        )
        response = await self._client.stream(self._path, query, silence=SILENCE_SECONDS)
        self.watching_since = self.watching_since or datetime.datetime.now(datetime.timezone.utc)
        try:
            async for event in _events(response):
                self._alive_at = time.monotonic()
                self._take(event)
                self._failures = 0
        finally:
            response.close()

    def _take(self, event: Json) -> None:
        body = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._store.put(body)
            case "DELETED":
                if not self._may_exist(body):
                    self._store.remove(body)
            case "ERROR":
                raise error_of(int(body.get("code", 500)), body)
            case _:
                pass  # BOOKMARK: only the version
        self._version = version_of(body) or self._version

    def _query(self, **more: str) -> dict[str, str]:
        return {**({"labelSelector": self._selector} if self._selector else {}), **more}


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    """Until the stream ends."""
    try:
        async for event in json_lines(response.content):
            yield event
    except TimeoutError:
        return  # silent: reopen it
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
