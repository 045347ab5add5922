"""Writes thousands of jobs with their pods straight into the API server's etcd: copies of one that the operator made.

Through the API server, they would take most of an hour on a small machine. It accepts JSON in its etcd too.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import aiohttp
import orjson

Json = dict[str, Any]
PUTS = 64
"""Puts per transaction: etcd accepts 128, and 1.5 MiB."""


class Etcd:
    """Bulk reads and writes over etcd's JSON gateway. An async context manager."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Etcd:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def read(self, prefix: str) -> dict[str, bytes]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = await self._call("kv/range", {"key": _b64(prefix.encode()), "range_end": _b64(end.encode())})
        return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]) for kv in found.get("kvs", [])}

    async def write(self, values: Iterable[tuple[str, bytes]]) -> None:
        puts = [{"requestPut": {"key": _b64(key.encode()), "value": _b64(value)}} for key, value in values]
        slots = asyncio.Semaphore(4)

        async def put(batch: list[Json]) -> None:
            async with slots:
                await self._call("kv/txn", {"success": batch})

        await asyncio.gather(*(put(puts[start : start + PUTS]) for start in range(0, len(puts), PUTS)))

    async def _call(self, method: str, body: Json) -> Json:
        async with self._session.post(f"{self._url}/v3/{method}", data=orjson.dumps(body)) as response:
            answer: Json = orjson.loads(await response.read())
            if response.status != 200:
                raise RuntimeError(f"{method}: {answer}")
            return answer


class Original:
    """A job, its pods and its Service as the API server returns them, and its keys in the etcd of its agents."""

    def __init__(self, job: Json, pods: list[Json], services: list[Json], keys: dict[str, bytes]) -> None:
        self.name, self.uid = str(job["metadata"]["name"]), str(job["metadata"]["uid"])
        self._namespace = str(job["metadata"]["namespace"])
        group = "elasticjob.dev/elasticjobs"
        self._objects = [(group, _stored(job)), *(("pods", _stored(pod)) for pod in pods)]
        self._objects += [("services/specs", _stored(service)) for service in services]
        self._keys = [(key.encode(), value) for key, value in keys.items()]

    def copy(
        self, name: str, namespace: str, nodes: list[str]
    ) -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
        """Keys and values of a copy: those for the API server's etcd, and those for the agents' etcd.

        `name` needs the original's length.
        """
        uid = str(uuid.uuid4())

        def renamed(text: bytes) -> bytes:
            text = text.replace(self.uid.encode(), uid.encode()).replace(self.name.encode(), name.encode())
            return text.replace(f'"namespace":"{self._namespace}"'.encode(), f'"namespace":"{namespace}"'.encode())

        objects, left = [], iter(nodes)
        for folder, text in self._objects:
            body = orjson.loads(renamed(text))
            if folder != "elasticjob.dev/elasticjobs":
                body["metadata"]["uid"] = str(uuid.uuid4())
            if folder == "pods":
                body["spec"]["nodeName"] = next(left)
            objects.append((f"/registry/{folder}/{namespace}/{body['metadata']['name']}", orjson.dumps(body)))
        return objects, [(renamed(key).decode(), renamed(value)) for key, value in self._keys]


def nodes(count: int) -> Iterator[tuple[str, bytes]]:
    for name in (f"node-{number:04}" for number in range(count)):
        metadata = {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
        ready = {
            "type": "Ready",
            "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "KubeletReady",
        }
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": {"conditions": [ready]}}
        yield f"/registry/minions/{name}", orjson.dumps(body)


def _stored(body: Json) -> bytes:
    metadata = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    return orjson.dumps({**body, "metadata": metadata})


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
