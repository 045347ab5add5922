"""APIs that a cluster may serve or not: found by discovery, watched while they are served.

An API that is not there costs a request now and then, and nothing is logged about it. It may come and go while the
operator runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from elasticjob_operator.kube.api_resources import ApiResource
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.client import ApiError, KubeClient, NotFoundError
from elasticjob_operator.kube.informer import Informer
from elasticjob_operator.names import LABEL_JOB

log = logging.getLogger(__name__)

DISCOVERY_SECONDS = 15.0
START_SECONDS = 10.0
"""How long the operator's start waits for what such an API has, so that no object is taken for missing."""
_LATEST = 2**63
"""Later than every resourceVersion."""

Watched = tuple[ApiResource, ObjectCache[Any]]


class OptionalApi:
    """`run` until cancelled. All of `watched` are of one API version. `changed()` is called when it is served, or no
    longer. `may_exist`: as of Informer, for what is namespaced."""

    def __init__(
        self,
        api: KubeClient,
        namespaces: Sequence[str],
        watched: Sequence[Watched],
        changed: Callable[[], None],
        may_exist: Callable[[Json], bool] = lambda _: False,
    ) -> None:
        self._client = api
        self._namespaces = namespaces
        self._watched = watched
        self._changed = changed
        self._may_exist = may_exist
        self.api_version = watched[0][0].group_version
        self._informers: dict[tuple[str, str], Informer] = {}
        """By plural and namespace."""
        self._tasks: list[asyncio.Task[None]] = []
        self._known = asyncio.Event()
        self.served = False
        """It is, and what it has is known."""

    def __str__(self) -> str:
        return self.api_version

    @property
    def forbidden(self) -> list[str]:
        """What may not be watched."""
        return [str(informer) for informer in self._informers.values() if informer.forbidden]

    async def run(self) -> None:
        try:
            while True:
                with contextlib.suppress(ApiError, ConnectionError):  # nothing is known: as before
                    await self._look(await self._is_served())
                await asyncio.sleep(DISCOVERY_SECONDS)
        finally:
            await self._stop()

    async def started(self) -> None:
        """Returns once it is known what the API has, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._known.wait()

    def on_written(self, resource: ApiResource, body: Json) -> None:
        """The response to our own write."""
        for namespace in (body["metadata"].get("namespace", ""), ""):
            if informer := self._informers.get((resource.plural, namespace)):
                informer.on_written(body)

    async def _is_served(self) -> bool:
        """Raises ApiError or ConnectionError."""
        try:
            answer = await self._client.request("GET", f"/apis/{self.api_version}")
        except NotFoundError:
            return False
        served = {resource.get("name") for resource in answer.get("resources") or ()}
        return all(resource.plural in served for resource, _ in self._watched)

    async def _look(self, is_served: bool) -> None:
        if is_served and not self._tasks:
            log.info("%s is served", self)
            self._start()
            await asyncio.gather(*(informer.synced.wait() for informer in self._informers.values()))
        elif not is_served and self._tasks:
            log.info("%s is no longer served", self)
            await self._stop()
        if is_served != self.served:
            self.served = is_served
            self._changed()
        self._known.set()

    def _start(self) -> None:
        for resource, store in self._watched:
            for namespace in self._namespaces if resource.namespaced else ("",):
                self._informers[resource.plural, namespace] = Informer(
                    self._client,
                    resource,
                    store,
                    namespace=namespace,
                    selector=LABEL_JOB if resource.namespaced else "",
                    optional=True,
                    may_exist=self._may_exist if resource.namespaced else lambda _: False,
                )
        self._tasks = [
            asyncio.create_task(informer.run(), name=f"informer of {informer}") for informer in self._informers.values()
        ]

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._informers = {}
        for _, store in self._watched:
            store.replacement().finish(_LATEST)
