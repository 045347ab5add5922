"""kopf's list and watch of ElasticJobs, sent by our own client.

kopf parses whatever it gets: one job of a thousand levels, or a page of large ones, would end it. Here it gets pages of
bounded size, and jobs as `bounded_job` leaves them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import orjson

from elasticjob_operator.kube.bounded import bounded_job
from elasticjob_operator.kube.client import Json, KubeClient, json_lines


class KopfSession:
    """What kopf uses of an aiohttp.ClientSession."""

    closed = False

    def __init__(self, api: KubeClient) -> None:
        self._client = api
        self._size = 1 << 20
        """Objects in the last page that was read."""
        self.headers = {"User-Agent": "elasticjob-operator"}

    async def request(self, *, url: str, timeout: aiohttp.ClientTimeout, **_: Any) -> aiohttp.ClientResponse | _Page:
        """Raises aiohttp.ClientConnectionError, after which kopf tries again, and ApiError, which ends it."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        try:
            if "limit" in query:
                page, self._size = await self._client.page(
                    parts.path, query, size=min(int(query["limit"]), 2 * self._size)
                )
                return _Page(page)
            response = await self._client.open(parts.path, query, timeout)
        except ConnectionError as error:
            raise aiohttp.ClientConnectionError(str(error)) from error
        if "watch" in query and response.status < 300:
            response.content = _Lines(response.content)  # type: ignore[assignment]
        return response

    async def close(self) -> None:
        """The client is not kopf's."""


class _Page:
    """A response with a list."""

    status = 200

    def __init__(self, page: Json) -> None:
        self._page = page

    async def __aenter__(self) -> _Page:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def json(self) -> Json:
        return {**self._page, "items": [bounded_job(item) for item in self._page.get("items") or []]}


class _Lines:
    """The content of a watch."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        async for event in json_lines(self._content):
            yield orjson.dumps({**event, "object": bounded_job(event["object"])}) + b"\n"
