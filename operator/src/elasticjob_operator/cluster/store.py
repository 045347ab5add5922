"""What an informer knows: objects by namespace and name, ordered by resourceVersion.

The informer is the truth. Answers to our own writes are entered as well, so that the next plan sees them and does not do the same again -
but only where they are newer than everything the informer has told, or an object that was deleted meanwhile would come back for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
Name = tuple[str, str]
"""(namespace, name)"""

REMEMBERED = 1000
"""Objects that are gone."""


class Store(Generic[T]):
    """`convert`: from the API's object to what is kept. `group`: under which keys (usually one job) an object is found.

    `changed(group key)` is called for every change that could matter.
    """

    def __init__(self, convert: Callable[[Json], T], group: Callable[[Json], Name | None], changed: Callable[[Name], None]) -> None:
        self._convert = convert
        self._group = group
        self._changed = changed
        self._objects: dict[Name, tuple[int, T, Name | None]] = {}
        self._groups: dict[Name, set[Name]] = {}
        self._by_name: dict[str, T] | None = None
        self._gone: dict[Name, int] = {}
        """Of the last objects that were deleted: their last version. A late word must not bring them back."""

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, name: Name) -> T | None:
        entry = self._objects.get(name)
        return entry[1] if entry else None

    def count(self, group: Name) -> int:
        return len(self._groups.get(group, ()))

    def of(self, group: Name) -> Iterator[T]:
        """The objects of a group."""
        return (self._objects[name][1] for name in self._groups.get(group, ()))

    @property
    def by_name(self) -> Mapping[str, T]:
        """Of a resource without namespaces. What was returned does not change; without news it is the same again."""
        if self._by_name is None:
            self._by_name = {name: value for (_, name), (_, value, _) in self._objects.items()}
        return self._by_name

    def groups_where(self, wanted: Callable[[T], bool]) -> set[Name]:
        """Groups with such an object. Looks at all: for rare occasions."""
        return {group for _, value, group in self._objects.values() if group is not None and wanted(value)}

    def put(self, body: Json) -> None:
        """An added or changed object. A state of a known object that is no news is ignored, and so is one of an object that is gone."""
        name, version = name_of(body), version_of(body)
        known = self._objects.get(name)
        if version and version <= (known[0] if known is not None else self._gone.get(name, 0)):
            return
        value, group = self._convert(body), self._group(body)
        if known is not None and known[2] != group:
            self._leave(name, known[2])
        self._objects[name] = (version, value, group)
        if group is not None:
            self._groups.setdefault(group, set()).add(name)
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
            self._drop(name_of(body))

    def replace(self, bodies: Iterable[Json], version: int, namespace: str = "") -> None:
        """All there is (in `namespace`; empty: everywhere), as of `version`. What came in later from our own writes stays."""
        gone = {name for name, entry in self._objects.items() if entry[0] <= version and namespace in ("", name[0])}
        for body in bodies:
            gone.discard(name_of(body))
            self.put(body)
        for name in gone:
            self._drop(name)

    def _drop(self, name: Name) -> None:
        _, _, group = self._objects.pop(name)
        self._by_name = None
        self._leave(name, group)
        self._tell(group)

    def _leave(self, name: Name, group: Name | None) -> None:
        members = self._groups.get(group) if group is not None else None
        if members is not None and group is not None:
            members.discard(name)
            if not members:
                del self._groups[group]

    def _tell(self, *groups: Name | None) -> None:
        for group in {each for each in groups if each is not None}:
            self._changed(group)


def name_of(body: Json) -> Name:
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def version_of(body: Json) -> int:
    """resourceVersion; comparable as a number within one resource (Kubernetes 1.35 guarantees it, etcd always had it so)."""
    text = str(body.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
