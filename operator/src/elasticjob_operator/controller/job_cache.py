"""The latest state of each ElasticJob, from kopf's watch and from responses to our own writes.

Most of thousands of jobs are idle at any time, so a job is kept as JSON, without fields that the operator never reads:
a tenth of the memory of Python objects. The most recently used jobs are also kept parsed.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from elasticjob_api import ElasticJob

from elasticjob_operator.kube.cache import to_bytes
from elasticjob_operator.names import NamespacedName

Json = Mapping[str, Any]

PARSED = 2048
"""Jobs kept parsed, some 20 KB each."""
_UNREAD = frozenset({"managedFields", "ownerReferences", "finalizers", "selfLink"})
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """One version of one job."""

    uid: str
    version: int
    generation: int
    true: tuple[str, ...]
    """Types of the conditions that are True."""
    body: bytes
    """JSON."""


class JobCache:
    def __init__(self) -> None:
        self._known: dict[NamespacedName, _Known] = {}
        self._parsed: collections.OrderedDict[NamespacedName, ElasticJob] = collections.OrderedDict()
        """The most recently used last."""
        self.conditions: collections.Counter[str] = collections.Counter()
        """By condition type, the number of jobs for which it is True."""

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[NamespacedName]:
        return iter(list(self._known))

    def put(self, body: Json) -> bool:
        """Whether this is a newer version. The watch may be behind the response to our own write."""
        key, metadata = key_of(body), body["metadata"]
        known, uid, version = self._known.get(key), str(metadata["uid"]), int(metadata.get("resourceVersion") or 0)
        if known is not None and known.uid == uid and version <= known.version:
            return False
        self._known[key] = new = _Known(uid, version, int(metadata.get("generation") or 0), _true(body), _bytes(body))
        self._parsed.pop(key, None)
        self._count(known, new)
        return True

    def remove(self, key: NamespacedName, uid: str) -> bool:
        """Removes the job with that UID, never a newer one of the same name. Whether it was there."""
        known = self._known.get(key)
        if known is None or known.uid != uid:
            return False
        del self._known[key]
        self._parsed.pop(key, None)
        self._count(known, None)
        return True

    def _count(self, before: _Known | None, after: _Known | None) -> None:
        """Updates the counts on each change, which is cheaper than counting whenever metrics are read."""
        self.conditions.subtract(before.true if before else ())
        self.conditions.update(after.true if after else ())

    def body(self, key: NamespacedName) -> Json | None:
        """The job as the API server returned it, without fields such as managedFields. A new object on each call."""
        known = self._known.get(key)
        body: Json | None = orjson.loads(known.body) if known else None
        return body

    def get(self, key: NamespacedName) -> ElasticJob | None:
        """Raises api.InvalidJobError."""
        if key in self._parsed:
            self._parsed.move_to_end(key)
            return self._parsed[key]
        body = self.body(key)
        if body is None:
            return None
        job = self._parsed[key] = ElasticJob.parse(body)
        if len(self._parsed) > PARSED:
            self._parsed.popitem(last=False)
        return job

    def uid(self, key: NamespacedName) -> str:
        """Empty: unknown."""
        known = self._known.get(key)
        return known.uid if known else ""

    def version(self, key: NamespacedName) -> int:
        """resourceVersion of the cached job; 0: unknown."""
        known = self._known.get(key)
        return known.version if known else 0

    def generation(self, key: NamespacedName) -> int:
        """metadata.generation of the cached job; 0: unknown."""
        known = self._known.get(key)
        return known.generation if known else 0


def key_of(body: Json) -> NamespacedName:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["name"]


def _true(body: Json) -> tuple[str, ...]:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return tuple(sys.intern(str(each["type"])) for each in conditions if each.get("status") == "True")


def _bytes(body: Json) -> bytes:
    metadata = {name: value for name, value in body["metadata"].items() if name not in _UNREAD}
    if _LAST_APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = {
            name: value for name, value in metadata["annotations"].items() if name != _LAST_APPLIED
        }
    return to_bytes({**body, "metadata": metadata})
