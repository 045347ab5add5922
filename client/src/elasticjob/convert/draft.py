"""An ElasticJob in the making, with the notes on where its fields come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from elasticjob_api import API_VERSION, KIND

from elasticjob.convert.paths import Path, children, get, pattern, show
from elasticjob.convert.table import ConvertError, Note, Outcome, Table

_ORDER = (
    "apiVersion", "kind", "metadata.name", "metadata.generateName", "metadata.namespace", "metadata.labels",
    "metadata.annotations", "spec.suspend", "spec.workers.replicas", "spec.workers.minReplicas",
    "spec.workers.maxReplicas", "spec.workers.allowedReplicas", "spec.workers.procsPerWorker", "spec.workers.container",
    "spec.workers.template", "spec.failurePolicy", "spec.scaling", "spec.scheduling", "spec.lifecycle",
    "spec.managedBy",
)  # fmt: skip
"""Order of the fields in the manifest, for readers."""


class Draft:
    """Collects the fields of an ElasticJob."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
        self.notes: list[Note] = []
        self.origins: dict[Path, Path] = {}
        """Path of something in a template that was merged -> where the input has it, if that is elsewhere."""

    def origin(self, path: Path) -> Path:
        """Where the input has what is at this path of a template that was merged."""
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in self.origins), ())
        return (*self.origins.get(known, ()), *path[len(known) :])

    def add(self, note: Note) -> None:
        self.notes.append(dataclasses.replace(note, path=self.origin(note.path)))

    def carried(self, path: Path, why: str, *, to: str) -> None:
        self.add(Note(path, Outcome.CARRIED, why, to=to))

    def changed(self, path: Path, why: str, instead: str = "", *, to: str = "") -> None:
        self.add(Note(path, Outcome.CHANGED, why, instead, to))

    def lost(self, path: Path, why: str, instead: str = "") -> None:
        self.add(Note(path, Outcome.LOST, why, instead))

    def irrelevant(self, path: Path, why: str) -> None:
        self.add(Note(path, Outcome.IRRELEVANT, why))

    def set(self, to: str, value: Any) -> None:
        """`to`: as in `spec.workers.replicas`."""
        self._fields[to] = value

    def get(self, to: str) -> Any:
        return self._fields.get(to)

    def carry(self, document: Mapping[str, Any], table: Table, at: Path = ()) -> None:
        """Sets every field whose value the ElasticJob takes as it is. `at`: where the document is, for the notes."""
        for row in table:
            path = pattern(row.path)
            value = get(document, path)
            if row.as_it_is and type(value) is row.as_it_is:
                self.set(row.to, value)
            elif row.as_it_is and value is not None:
                self.lost((*at, *path), f"{value!r:.60} is not of type {row.as_it_is.__name__}", f"set {row.to}")

    def manifest(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for to in sorted(self._fields, key=_place):
            *parents, last = to.split(".")
            fields = result
            for step in parents:
                fields = fields.setdefault(step, {})
            fields[last] = self._fields[to]
        return result


def _place(to: str) -> int:
    return next(place for place, start in enumerate(_ORDER) if to.startswith(start))


def an_object(document: Mapping[str, Any], *path: str | int, required: bool = False) -> dict[str, Any]:
    """The object at `path`; empty if it is not there. Raises ConvertError if it is something else."""
    value = get(document, path)
    if value is None and not required:
        return {}
    if not isinstance(value, dict):
        problem = "is missing" if value is None else f"is {value!r:.60}, which is not an object"
        raise ConvertError(f"{show(path)} {problem}")
    return value


def a_list(document: Mapping[str, Any], *path: str | int, at: Path = ()) -> list[Any]:
    """The list of objects at `path`; empty if it is not there. Raises ConvertError if it is something else. `at`: where
    the document is in the input."""
    value = get(document, path)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConvertError(f"{show((*at, *path))} is {value!r:.60}, which is not a list")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise ConvertError(f"{show((*at, *path, index))} is {item!r:.60}, which is not an object")
    return value


def a_number(document: Mapping[str, Any], *path: str | int) -> int | None:
    """The number at `path`. Raises ConvertError if it is something else."""
    value = get(document, path)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConvertError(f"{show(path)} is {value!r:.60}, which is not a number: remove the quotes, or correct it")
    return value


def check_names(value: Any, path: Path = ()) -> None:
    """Every name and mountPath is text, because lists are searched by them. Raises ConvertError."""
    for step, item in children(value):
        if step in ("name", "mountPath") and not isinstance(item, str | None):
            raise ConvertError(f"{show((*path, step))} is {item!r:.60}, which is not text")
        check_names(item, (*path, step))


def role(document: Mapping[str, Any], path: Path, name: str) -> tuple[str, dict[str, Any]] | None:
    """Of the replica types at `path` the one of that name, in any case, with its key. None: the job has none."""
    specs = an_object(document, *path, required=True)
    key = next((key for key in specs if key.lower() == name.lower()), None)
    return (key, an_object(document, *path, key, required=True)) if key is not None else None
