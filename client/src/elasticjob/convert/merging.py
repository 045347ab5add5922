"""Several pod templates that become the one template of an ElasticJob."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from elasticjob.convert.draft import Draft
from elasticjob.convert.paths import Path


class Merge(abc.ABC):
    """Puts what another template has into a template, and says of later notes where the result comes from."""

    names: ClassVar[Mapping[str, str]]
    """Lists whose items are put together -> the field that names an item; empty: an item is its own name."""
    replaces: ClassVar[bool]
    """Whether the other's value counts where both have one."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    @abc.abstractmethod
    def note_unused(self, path: Path) -> None:
        """A value of either that does not count."""

    @abc.abstractmethod
    def adds(self, source: Path) -> bool:
        """Whether what only the other has is added. Notes what people must know about it."""

    def of(self, value: Any, other: Any, at: Path, source: Path) -> Any:
        """`at`: the place of `value`; `source`: that of `other`. None: there is nothing."""
        name = self.names.get(str(at[-1]))
        if isinstance(value, dict) and isinstance(other, dict):
            merged = {key: self.of(value.get(key), item, (*at, key), (*source, key)) for key, item in other.items()}
            return value | {key: item for key, item in merged.items() if item is not None}
        if name is not None and isinstance(value, list) and isinstance(other, list):
            return self._lists(value, other, at, source, name)
        if other is None or value == other:
            return value
        if value is None and not self.adds(source):
            return None
        if value is not None:
            self.note_unused(at if self.replaces else source)
        if value is not None and not self.replaces:
            return value
        self.draft.origins[at] = source
        return other

    def _lists(self, value: list[Any], other: list[Any], at: Path, source: Path, name: str) -> list[Any]:
        result = [*value]
        for index, item in enumerate(other):
            place = next(
                (i for i, present in enumerate(result) if _name(present, name) == _name(item, name)), len(result)
            )
            there = result[place] if place < len(result) else None
            merged = self.of(there, item, (*at, place), (*source, index))
            result[place:] = [*([] if merged is None else [merged]), *result[place + 1 :]]
        return result


def _name(item: Any, field: str) -> Any:
    return item.get(field) if field and isinstance(item, dict) else item
