"""An ElasticJob in the making, with the notes on where its fields come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob_api import API_VERSION, KIND

from elasticjob.convert.paths import Path, find, get, pattern, put, show
from elasticjob.convert.table import ConvertError, Note, Outcome, RejectedValue, Table

_ORDER = {
    "": ("apiVersion", "kind", "metadata", "spec"),
    "metadata": ("name", "generateName", "namespace", "labels", "annotations"),
    "spec": (
        "workers", "rendezvous", "checkpoint", "restartPolicy", "scaling", "scheduling", "lifecycle", "managedBy",
    ),
    "spec.workers": (
        "replicas", "minReplicas", "maxReplicas", "allowedReplicas", "replicaStep", "procsPerWorker", "container",
        "template",
    ),
}  # fmt: skip
"""Order of the fields in the manifest, for readers."""


class Draft:
    """Collects the fields of an ElasticJob."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
        self.notes: list[Note] = []

    def note(
        self, path: Path, outcome: Outcome, why: str, instead: str = "", *, to: str = "", also: tuple[Path, ...] = ()
    ) -> None:
        self.notes.append(Note(path, outcome, why, instead, to, also))

    def changed(self, path: Path, why: str, instead: str = "", *, to: str = "") -> None:
        self.note(path, Outcome.CHANGED, why, instead, to=to)

    def lost(self, path: Path, why: str, instead: str = "") -> None:
        self.note(path, Outcome.LOST, why, instead)

    def irrelevant(self, path: Path, why: str) -> None:
        self.note(path, Outcome.IRRELEVANT, why)

    def set(self, to: str, value: Any) -> None:
        """`to`: as in `spec.workers.replicas`."""
        put(self._fields, to.split("."), value)

    def unset(self, to: str) -> None:
        *parents, last = to.split(".")
        parent = get(self._fields, parents)
        if isinstance(parent, dict):
            parent.pop(last, None)
            if not parent and parents:
                self.unset(".".join(parents))

    def get(self, to: str) -> Any:
        return get(self._fields, to.split("."))

    def carry(self, document: Mapping[str, Any], table: Table, at: Path = ()) -> None:
        """Sets every field that a row can convert by itself. `at`: where the document is, for the notes."""
        for row in table:
            if row.convert is None:
                continue
            for path, value in find(document, pattern(row.path)):
                try:
                    self.set(row.to, row.convert(value))
                except RejectedValue as rejected:
                    self.note((*at, *path), rejected.outcome, rejected.why, rejected.instead)

    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = _sorted(self._fields, "")
        return manifest


def _sorted(fields: Any, at: str) -> Any:
    order = _ORDER.get(at)
    if order is None:
        return fields
    keys = sorted(fields, key=lambda key: order.index(key) if key in order else len(order))
    return {key: _sorted(fields[key], f"{at}.{key}".removeprefix(".")) for key in keys}


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


def a_number(document: Mapping[str, Any], path: Path) -> int | None:
    """The number at `path`. Raises ConvertError if it is something else."""
    value = get(document, path)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConvertError(f"{show(path)} is {value!r:.60}, which is not a number: remove the quotes, or correct it")
    return value


def check_names(value: Any, path: Path = ()) -> None:
    """Every name and mountPath is text, because lists are searched by them. Raises ConvertError."""
    items: Iterable[tuple[str | int, Any]]
    items = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for step, item in items:
        if step in ("name", "mountPath") and not isinstance(item, str | None):
            raise ConvertError(f"{show((*path, step))} is {item!r:.60}, which is not text")
        check_names(item, (*path, step))


def present(document: Mapping[str, Any], *paths: Path) -> list[Path]:
    """Those of the paths at which there is a value."""
    return [path for path in paths if get(document, path) is not None]
