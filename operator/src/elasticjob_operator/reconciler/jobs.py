"""The ElasticJobs, as kopf's watch and our own writes tell of them. The newest state of each, parsed when asked for."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from elasticjob_operator.api import ElasticJob

Key = tuple[str, str]
Json = Mapping[str, Any]


class Jobs:
    def __init__(self) -> None:
        self._bodies: dict[Key, Json] = {}
        self._parsed: dict[Key, ElasticJob] = {}
        self.conditions: collections.Counter[str] = collections.Counter()
        """How many jobs each condition is True of."""

    def __len__(self) -> int:
        return len(self._bodies)

    def __iter__(self) -> Any:
        return iter(list(self._bodies))

    def put(self, body: Json) -> bool:
        """Whether this is news. An older state of the same job is not: the answer to our own write may be ahead of the watch."""
        key = key_of(body)
        known = self._bodies.get(key)
        if known is not None and _uid(known) == _uid(body) and _version(body) <= _version(known):
            return False
        self._bodies[key] = body
        self._parsed.pop(key, None)
        self._count(known, body)
        return True

    def remove(self, key: Key, uid: str) -> bool:
        """Only that very job, never a younger one of its name. Whether it was there."""
        known = self._bodies.get(key)
        if known is None or _uid(known) != uid:
            return False
        del self._bodies[key]
        self._parsed.pop(key, None)
        self._count(known, None)
        return True

    def _count(self, before: Json | None, after: Json | None) -> None:
        """Now, and not whenever somebody reads the figures."""
        self.conditions.subtract(_true(before))
        self.conditions.update(_true(after))

    def body(self, key: Key) -> Json | None:
        return self._bodies.get(key)

    def get(self, key: Key) -> ElasticJob | None:
        """Raises api.InvalidJobError."""
        body = self._bodies.get(key)
        if body is None:
            return None
        if key not in self._parsed:
            self._parsed[key] = ElasticJob.parse(body)
        return self._parsed[key]

    def version(self, key: Key) -> int:
        """resourceVersion of the known state; 0: not known."""
        body = self._bodies.get(key)
        return _version(body) if body is not None else 0


def key_of(body: Json) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["name"]


def _true(body: Json | None) -> list[str]:
    conditions = ((body or {}).get("status") or {}).get("conditions") or ()
    return [each["type"] for each in conditions if each.get("status") == "True"]


def _uid(body: Json) -> str:
    return str(body["metadata"]["uid"])


def _version(body: Json) -> int:
    return int(body["metadata"].get("resourceVersion") or 0)
