"""What an informer knows: objects by namespace and name, ordered by resourceVersion.

The informer is the truth. Answers to our own writes are entered as well, so that the next plan sees them and does not
do the same again - but only where they are newer than everything the informer has told, or an object that was deleted
meanwhile would come back for ever.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from sys import intern
from typing import Any, Generic, TypeVar

import orjson

from elasticjob_operator.names import NamespacedName

T = TypeVar("T")
Json = dict[str, Any]
Entry = tuple[int, T, NamespacedName | None]
"""resourceVersion, what is kept, group"""

REMEMBERED = 1000
"""Objects that are gone."""


class ObjectCache(Generic[T]):
    """`convert`: from the API's object to what is kept. `group`: under which keys (usually one job) an object is found.
    `index`: at which place, such as a node, an object is, so that the groups with objects there are found without
    looking at all; empty: nowhere.

    `changed(group key)` is called for every change that could matter.
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
        """By place, how many objects of which groups are there."""
        self._by_name: dict[str, T] | None = None
        self._gone: dict[NamespacedName, int] = {}
        """Of the last objects that were deleted: their last version. A late word must not bring them back."""

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
        """Of a resource without namespaces. What was returned does not change; without news it is the same again."""
        if self._by_name is None:
            self._by_name = {name: value for (_, name), (_, value, _) in self._objects.items()}
        return self._by_name

    def groups_at(self, place: str) -> list[NamespacedName]:
        """Groups with an object at that place of the index."""
        return list(self._places.get(place, ()))

    def put(self, body: Json) -> None:
        """An added or changed object. A state of a known object that is no news is ignored, and so is one of an object
        that is gone."""
        name, version = name_of(body), version_of(body)
        known = self._objects.get(name)
        if version and version <= (known[0] if known is not None else self._gone.get(name, 0)):
            return
        value, group = self._convert(body), self._group(body)
        self._file(name, known, (version, value, group))
        if known is None or known[1] != value:
            self._by_name = None
            self._tell(group, known[2] if known else None)

    def remove(self, body: Json) -> None:
        """A deleted object, as it was last. A younger one of the same name stays."""
        known = self._objects.get(name_of(body))
        if known is None or known[0] <= version_of(body):
            self._gone[name_of(body)] = version_of(body)
            while len(self._gone) > REMEMBERED:
                del self._gone[next(iter(self._gone))]
        if known is not None and known[0] <= version_of(body):
            self.drop(name_of(body))

    def replacement(self, namespace: str = "") -> Replacement:
        """Takes all there is (in `namespace`; empty: everywhere) page by page, so that a long list is never held
        whole."""
        return Replacement(self, namespace)

    def replace(self, bodies: Iterable[Json], version: int, namespace: str = "") -> None:
        """All there is, as of `version`."""
        replacement = self.replacement(namespace)
        replacement.add(bodies)
        replacement.finish(version)

    def older_than(self, version: int, namespace: str) -> set[NamespacedName]:
        """Names of what is known of that namespace (empty: of all) and has not changed since."""
        return {name for name, entry in self._objects.items() if entry[0] <= version and namespace in ("", name[0])}

    def drop(self, name: NamespacedName) -> None:
        """It is gone, though nobody said so."""
        entry = self._objects[name]
        self._by_name = None
        self._file(name, entry, None)
        self._tell(entry[2])

    def _file(self, name: NamespacedName, before: Entry[T] | None, after: Entry[T] | None) -> None:
        """Under its name, its group and its place."""
        if before is not None and before[2] is not None and (after is None or after[2] != before[2]):
            _leave(self._groups, before[2], name)
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

    def _tell(self, *groups: NamespacedName | None) -> None:
        for group in {each for each in groups if each is not None}:
            self._changed(group)


class Replacement:
    """All there is of a resource, as a list tells it. What came in later from our own writes stays."""

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
        """That was all, as of `version`: whatever else is known is gone."""
        for name in self._store.older_than(version, self._namespace) - self._seen:
            self._store.drop(name)


def _leave(groups: dict[NamespacedName, set[NamespacedName]], group: NamespacedName, name: NamespacedName) -> None:
    members = groups[group]
    members.discard(name)
    if not members:
        del groups[group]


def name_of(body: Json) -> NamespacedName:
    metadata = body["metadata"]
    return intern(metadata.get("namespace", "")), metadata["name"]


def to_bytes(value: Any) -> bytes:
    """JSON that takes no more memory than it is long: what orjson gives keeps the buffer in which it was made."""
    return bytes(memoryview(orjson.dumps(value)))


def version_of(body: Json) -> int:
    """resourceVersion; comparable as a number within one resource (Kubernetes 1.35 guarantees it, etcd always had it
    so)."""
    text = str(body.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
