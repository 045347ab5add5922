"""The latest state of each ElasticJob, from kopf's watch and from responses to our own writes.

Most of thousands of jobs are idle at any time, so a job is kept as JSON, without fields that the operator never reads:
a tenth of the memory of Python objects. The most recently used jobs are also kept parsed. Both are bounded by bytes:
users choose how large their jobs are.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import orjson
from elasticjob_api import ElasticJob, InvalidJobError
from elasticjob_api.goodput import TimePart

from elasticjob_operator.kube import FAULT, bounded_job, values_in, without_spec
from elasticjob_operator.kube.cache import to_bytes
from elasticjob_operator.names import NamespacedName

Json = Mapping[str, Any]

MOST, PARSED = 128 << 20, 64 << 20
"""Bytes of all jobs as JSON, and about those of the jobs kept parsed, some 30 KB each."""
LARGE = 64 << 10
"""Bytes of a job that gives way when all together are too large. One with a full history and a traceback has about half
of it, and is kept however many there are."""
GOODPUTS = (25, 50, 75, 90)
"""Percentages for which jobs are counted that are below."""
YOUNG_SECONDS = 3600
"""Seconds in which a job's goodput says little: it starts."""
_PARSED_VALUE = 64
"""Bytes of a small parsed value."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """One version of one job."""

    uid: str
    version: int
    generation: int
    true: tuple[str, ...]
    """Types of the conditions that are True."""
    seconds: Mapping[str, int]
    """What its time was spent on, by part."""
    below: tuple[str, ...]
    """Of GOODPUTS, those that it is below."""
    tier: str
    """The etcd tier that its run uses; empty: none."""
    body: bytes
    """JSON."""

    @property
    def parsed(self) -> int:
        """About how many bytes it takes once it is parsed."""
        return len(self.body) + _PARSED_VALUE * values_in(self.body)


@dataclasses.dataclass(slots=True)
class _Counts:
    """Of the jobs of one shard."""

    jobs: int = 0
    conditions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    seconds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    below: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class JobCache:
    """`shard_of(key)`: the shard of a job. `led()`: the shards whose jobs are counted; None: all."""

    def __init__(
        self,
        shard_of: Callable[[NamespacedName], int] = lambda _: 0,
        led: Callable[[], Collection[int] | None] = lambda: None,
    ) -> None:
        self._shard_of, self._led = shard_of, led
        self._counts: dict[int, _Counts] = {}
        self.runs_in_tiers: collections.Counter[str] = collections.Counter()
        """By etcd tier, of the jobs of all shards."""
        self._known: dict[NamespacedName, _Known] = {}
        self._parsed: collections.OrderedDict[NamespacedName, ElasticJob] = collections.OrderedDict()
        """The most recently used last."""
        self._parsed_bytes = 0
        self._bytes: collections.Counter[str] = collections.Counter()
        """By namespace, of the jobs as JSON."""

    def count(self, shard: int) -> int:
        """Jobs of a shard."""
        return self._counts[shard].jobs if shard in self._counts else 0

    @property
    def conditions(self) -> collections.Counter[str]:
        """By condition type, the number of jobs for which it is True."""
        return self._sum(lambda counts: counts.conditions)

    @property
    def seconds(self) -> collections.Counter[str]:
        """What the time of all jobs was spent on, by part."""
        return self._sum(lambda counts: counts.seconds)

    @property
    def below(self) -> collections.Counter[str]:
        """By percentage, the number of jobs whose goodput is below it."""
        return self._sum(lambda counts: counts.below)

    def _sum(self, part: Callable[[_Counts], collections.Counter[str]]) -> collections.Counter[str]:
        led, total = self._led(), collections.Counter[str]()
        for shard, counts in list(self._counts.items()):
            if led is None or shard in led:
                total.update(dict(part(counts)))
        return total

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
        self._replace(key, _known(bounded_job(body)))
        while self._bytes.total() > MOST and self._give_up_largest():
            pass
        return True

    def _give_up_largest(self) -> bool:
        """The namespace with the most bytes gives way, and no other tenant. False: it has no large job."""
        largest = max(self._bytes, key=self._bytes.__getitem__)
        sizes = {key: len(known.body) for key, known in self._known.items() if key[0] == largest}
        key = max(sizes, key=sizes.__getitem__)
        if sizes[key] < LARGE or FAULT in (body := orjson.loads(self._known[key].body)):
            return False
        fault = (
            f"spec: the ElasticJobs of namespace {largest} are too large: {self._bytes[largest]:,} bytes, and all "
            f"namespaces together may have {MOST:,}; delete some, and then change this job"
        )
        self._replace(key, _known(without_spec(body, fault)))
        return True

    def remove(self, key: NamespacedName, uid: str) -> bool:
        """Removes the job with that UID, never a newer one of the same name. Whether it was there."""
        known = self._known.get(key)
        if known is None or known.uid != uid:
            return False
        self._replace(key, None)
        return True

    def _replace(self, key: NamespacedName, after: _Known | None) -> None:
        """Updates the counts on each change, which is cheaper than counting whenever metrics are read."""
        before = self._known.pop(key, None)
        if before is not None and self._parsed.pop(key, None) is not None:
            self._parsed_bytes -= before.parsed
        if after is not None:
            self._known[key] = after
        self._bytes[key[0]] += (len(after.body) if after else 0) - (len(before.body) if before else 0)
        if not self._bytes[key[0]]:
            del self._bytes[key[0]]
        self.runs_in_tiers.subtract([before.tier] if before and before.tier else ())
        self.runs_in_tiers.update([after.tier] if after and after.tier else ())
        counts = self._counts.setdefault(self._shard_of(key), _Counts())
        counts.jobs += (after is not None) - (before is not None)
        counts.conditions.subtract(before.true if before else ())
        counts.conditions.update(after.true if after else ())
        counts.seconds.subtract(before.seconds if before else {})
        counts.seconds.update(after.seconds if after else {})
        counts.below.subtract(before.below if before else ())
        counts.below.update(after.below if after else ())

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
        if FAULT in body:
            raise InvalidJobError(body[FAULT])
        job = self._parsed[key] = ElasticJob.parse(body)
        self._parsed_bytes += self._known[key].parsed
        while self._parsed_bytes > PARSED:
            self._parsed_bytes -= self._known[self._parsed.popitem(last=False)[0]].parsed
        return job

    def is_true(self, key: NamespacedName, condition: str) -> bool:
        """Whether the cached job has this condition."""
        known = self._known.get(key)
        return known is not None and condition in known.true

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
    return tuple(sys.intern(str(condition["type"])) for condition in conditions if condition.get("status") == "True")


def _seconds(body: Json) -> Mapping[str, int]:
    found = (body.get("status") or {}).get("goodput") or {}
    return {part.value: int(found[part.value]) for part in TimePart if found.get(part.value)}


def _below(body: Json) -> tuple[str, ...]:
    """A job that has ended, or whose steps are not known, is below none."""
    percent = ((body.get("status") or {}).get("goodput") or {}).get("percent")
    active = sum(seconds for part, seconds in _seconds(body).items() if part != TimePart.SUSPENDED)
    if percent is None or active < YOUNG_SECONDS or {"Succeeded", "Failed"} & set(_true(body)):
        return ()
    return tuple(sys.intern(str(limit)) for limit in GOODPUTS if percent < limit)


def _tier(body: Json) -> str:
    """A run that has ended uses none."""
    tier = str(((body.get("status") or {}).get("rendezvous") or {}).get("tier") or "")
    return "" if {"Succeeded", "Failed", "Suspended"} & set(_true(body)) else sys.intern(tier)


def _known(body: Json) -> _Known:
    metadata = body["metadata"]
    version, generation = int(metadata.get("resourceVersion") or 0), int(metadata.get("generation") or 0)
    return _Known(
        str(metadata["uid"]),
        version,
        generation,
        _true(body),
        _seconds(body),
        _below(body),
        _tier(body),
        to_bytes(body),
    )
