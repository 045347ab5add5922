"""An informer's cache: the latest version of each object, by namespace and name.

The informer is authoritative. Responses to our own writes are stored as well, so that the next plan sees them and does
not repeat the write, but only where they are newer than everything the informer has seen: otherwise an object deleted
in the meantime would reappear and stay forever.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from sys import intern
from typing import Any, Generic, TypeVar

import orjson

from elasticjob_operator.names import NamespacedName

T = TypeVar("T")
Json = dict[str, Any]
log = logging.getLogger(__name__)

Entry = tuple[int, T, NamespacedName | None]
"""resourceVersion, cached value, group"""

MAX_TOMBSTONES = 1000
"""Deleted objects to remember."""


class ObjectCache(Generic[T]):
    """`convert` turns an API object into the cached value. `group` returns the job that it belongs to. `index` returns
    an index value, such as the node name, by which the groups with such objects are found; empty: not indexed.

    `changed(group)` is called for every change of a cached value.
    """

    def __init__(
        self,
        convert: Callable[[Json], T],
        group: Callable[[Json], NamespacedName | None],
        changed: Callable[[NamespacedName], None],
        index: Callable[[T], str] = lambda _: "",
    ) -> None:
        self._convert = convert
        self._group = group
        self._changed = changed
        self._index = index
        self._objects: dict[NamespacedName, Entry[T]] = {}
        self._groups: dict[NamespacedName, set[NamespacedName]] = {}
        self._places: dict[str, collections.Counter[NamespacedName]] = {}
        """By index value, how many objects each group has."""
        self._by_name: dict[str, T] | None = None
        self._tombstones: dict[NamespacedName, int] = {}
        """The last versions of deleted objects, so that a late event does not bring them back."""

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, name: NamespacedName) -> T | None:
        entry = self._objects.get(name)
        return entry[1] if entry else None

    def count(self, group: NamespacedName) -> int:
        return len(self._groups.get(group, ()))

    def of(self, group: NamespacedName) -> Iterator[T]:
        """The objects of a group."""
        return (self._objects[name][1] for name in self._groups.get(group, ()))

    @property
    def by_name(self) -> Mapping[str, T]:
        """Of a cluster-scoped resource. An immutable snapshot; the same one until something changes."""
        if self._by_name is None:
            self._by_name = {name: value for (_, name), (_, value, _) in self._objects.items()}
        return self._by_name

    def groups_at(self, place: str) -> list[NamespacedName]:
        """Groups with an object of that index value."""
        return list(self._places.get(place, ()))

    def put(self, body: Json) -> None:
        """An added or modified object. An old version, also of a deleted object, is ignored. An object that cannot be
        read is left out, as if it were deleted: anyone may have made or changed it, and what was known is no longer
        true."""
        name, version = name_of(body), version_of(body)
        known = self._objects.get(name)
        if version and version <= (known[0] if known is not None else self._tombstones.get(name, 0)):
            return
        try:
            value, group = self._convert(body), self._group(body)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            log.warning("Ignoring %s %s/%s, which cannot be read: %r", body.get("kind", "object"), *name, error)
            self.remove(body)
            return
        self._index_entry(name, known, (version, value, group))
        if known is None or known[1] != value:
            self._by_name = None
            self._notify(group, known[2] if known else None)

    def remove(self, body: Json) -> None:
        """A deleted object, in its last version. A newer one of the same name is kept."""
        known = self._objects.get(name_of(body))
        if known is None or known[0] <= version_of(body):
            self._tombstones[name_of(body)] = version_of(body)
            while len(self._tombstones) > MAX_TOMBSTONES:
                del self._tombstones[next(iter(self._tombstones))]
        if known is not None and known[0] <= version_of(body):
            self.drop(name_of(body))

    def replacement(self, namespace: str = "") -> Relist:
        """Replaces all objects (in `namespace`; empty: in all) page by page, so that a long list is never in memory as
        a whole."""
        return Relist(self, namespace)

    def older_than(self, version: int, namespace: str) -> set[NamespacedName]:
        """Names of the objects in a namespace (empty: in all) that have not changed since."""
        return {name for name, entry in self._objects.items() if entry[0] <= version and namespace in ("", name[0])}

    def drop(self, name: NamespacedName) -> None:
        """The object was deleted, although no event reported it."""
        entry = self._objects[name]
        self._by_name = None
        self._index_entry(name, entry, None)
        self._notify(entry[2])

    def _index_entry(self, name: NamespacedName, before: Entry[T] | None, after: Entry[T] | None) -> None:
        """Updates the indexes by name, group and index value."""
        if before is not None and before[2] is not None and (after is None or after[2] != before[2]):
            _discard(self._groups, before[2], name)
        if after is not None:
            self._objects[name] = after
            if after[2] is not None:
                self._groups.setdefault(after[2], set()).add(name)
        else:
            del self._objects[name]
        self._place(before, -1)
        self._place(after, 1)

    def _place(self, entry: Entry[T] | None, count: int) -> None:
        group, place = (entry[2], self._index(entry[1])) if entry is not None else (None, "")
        if group is None or not place:
            return
        groups = self._places.setdefault(place, collections.Counter())
        groups[group] += count
        if not groups[group]:
            del groups[group]
            if not groups:
                del self._places[place]

    def _notify(self, *groups: NamespacedName | None) -> None:
        for group in {group for group in groups if group is not None}:
            self._changed(group)


class Relist:
    """A list of all objects, page by page. Newer versions from our own writes are kept."""

    def __init__(self, store: ObjectCache[Any], namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._seen: set[NamespacedName] = set()

    def add(self, bodies: Iterable[Json]) -> None:
        """A page."""
        for body in bodies:
            self._seen.add(name_of(body))
            self._store.put(body)

    def finish(self, version: int) -> None:
        """The list is complete, as of `version`: drops everything else."""
        for name in self._store.older_than(version, self._namespace) - self._seen:
            self._store.drop(name)


def _discard(groups: dict[NamespacedName, set[NamespacedName]], group: NamespacedName, name: NamespacedName) -> None:
    members = groups[group]
    members.discard(name)
    if not members:
        del groups[group]


def name_of(body: Json) -> NamespacedName:
    metadata = body["metadata"]
    return intern(metadata.get("namespace", "")), metadata["name"]


def to_bytes(value: Any) -> bytes:
    """Compact JSON: the result of orjson.dumps keeps its larger buffer."""
    return bytes(memoryview(orjson.dumps(value)))


def version_of(body: Json) -> int:
    """resourceVersion as a number, comparable within one resource (guaranteed since Kubernetes 1.35, true before)."""
    text = str(body.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
