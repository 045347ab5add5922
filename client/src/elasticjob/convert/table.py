"""What becomes of each field of a job: the rows of a mapping table, notes on single fields, and the account of both.

Every leaf of the input gets exactly one entry in the account: from a note, from the row that fits it best, or as
unknown. A field that no row names can therefore not be lost unnoticed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from elasticjob.convert.paths import ANY_INDEX, ANY_KEY, Path, covers, leads_to, leaves, pattern
from elasticjob.errors import InvalidManifestError


class Outcome(str, enum.Enum):
    """What became of a field."""

    CARRIED = "carried"
    """It means the same in the ElasticJob."""
    CHANGED = "changed"
    """It is in the ElasticJob, but works differently there."""
    IRRELEVANT = "irrelevant"
    """An ElasticJob needs nothing in its place."""
    LOST = "lost"
    """The ElasticJob lacks it."""
    UNKNOWN = "unknown"
    """Not a field of this API, as far as we know, so it is not in the ElasticJob."""
    MISSING = "missing"
    """Something that the ElasticJob needs and the input does not say."""

    __str__ = str.__str__


class ConvertError(InvalidManifestError):
    """The input cannot be converted. One sentence: what is wrong, where, what to do."""


class RejectedValue(ValueError):
    """A value that has no counterpart, although others of its field do."""

    def __init__(self, why: str, instead: str = "", outcome: Outcome = Outcome.LOST) -> None:
        super().__init__(why)
        self.why = why
        self.instead = instead
        self.outcome = outcome


@dataclasses.dataclass(frozen=True)
class Note:
    """What became of one field of the input, or of everything below it."""

    path: Path
    outcome: Outcome
    why: str = ""
    instead: str = ""
    """What to do instead."""
    to: str = ""
    """The field of the ElasticJob; empty: none."""
    also: tuple[Path, ...] = ()
    """Further fields of which the same is true, such as the value of a flag."""
    document: str = ""
    """Which document of the input, if there are several."""


Convert = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A row of a mapping table: a field of another API, with everything below it."""

    path: str
    """See `paths.pattern`."""
    outcome: Outcome
    to: str = ""
    why: str = ""
    instead: str = ""
    convert: Convert | None = None
    """Value -> value of `to`. Raises RejectedValue. None: code sets `to`, or nothing does."""


def same(value: Any) -> Any:
    return value


def carried(path: str, to: str, why: str = "", *, convert: Convert | None = same) -> Field:
    return Field(path=path, outcome=Outcome.CARRIED, to=to, why=why, convert=convert)


def computed(path: str, to: str, why: str = "") -> Field:
    """Code sets `to`, from this field and others."""
    return Field(path=path, outcome=Outcome.CARRIED, to=to, why=why)


def changed(path: str, to: str, why: str, instead: str = "", *, convert: Convert | None = None) -> Field:
    return Field(path=path, outcome=Outcome.CHANGED, to=to, why=why, instead=instead, convert=convert)


def irrelevant(path: str, why: str) -> Field:
    return Field(path=path, outcome=Outcome.IRRELEVANT, why=why)


def lost(path: str, why: str, instead: str = "") -> Field:
    return Field(path=path, outcome=Outcome.LOST, why=why, instead=instead)


Table = Sequence[Field]


def _specificity(row: Field) -> tuple[int, int]:
    steps = pattern(row.path)
    return len(steps), sum(step not in (ANY_KEY, ANY_INDEX) for step in steps)


def row_for(table: Table, path: Path) -> Field | None:
    """The row that says what becomes of this field: the longest one that fits."""
    return max((row for row in table if covers(pattern(row.path), path)), key=_specificity, default=None)


def account(document: Mapping[str, Any], table: Table, notes: Iterable[Note]) -> list[Note]:
    """What became of every leaf of the document, in its order; notes on what is missing come last."""
    special: dict[Path, list[Note]] = {}
    for note in notes:
        for path in (note.path, *note.also):
            special.setdefault(path, []).append(note)
    found: dict[Note, None] = {}  # an ordered set
    for path, value in leaves(document):
        nearest = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in special), None)
        by_table = [] if nearest is not None else _by_table(table, path, value)
        found |= dict.fromkeys(by_table if nearest is None else special[nearest])
    on_missing_fields = (note for each in special.values() for note in each)
    return list(found | dict.fromkeys(on_missing_fields))


def _by_table(table: Table, path: Path, value: Any) -> list[Note]:
    """None for an empty object or list in which fields could be."""
    row = row_for(table, path)
    if row:
        at = path[: len(pattern(row.path))]
        return [Note(at, row.outcome, row.why, row.instead, row.to)]
    patterns = [pattern(each.path) for each in table]
    if value in (None, {}, []) and any(leads_to(path, each) for each in patterns):
        return []
    known = next(end for end in range(len(path), -1, -1) if any(leads_to(path[:end], each) for each in patterns))
    return [
        Note(
            path[: known + 1],
            Outcome.UNKNOWN,
            "this API has no such field, or it is newer than this converter",
            "check its spelling; if it is new, set what it does in the ElasticJob",
        )
    ]
