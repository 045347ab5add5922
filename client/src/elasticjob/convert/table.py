"""What becomes of each field of a job: the rows of a mapping table, notes on single fields, and the account of both.

Every leaf of the input gets exactly one entry in the account: from a note, from the row that fits it best, or as
unknown. A field that no row names can therefore not be lost unnoticed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticjob.convert.paths import ANY_INDEX, ANY_KEY, Path, Pattern, children, fits, pattern
from elasticjob.errors import InvalidManifestError


class Outcome(enum.StrEnum):
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


class ConvertError(InvalidManifestError):
    """The input cannot be converted. One sentence: what is wrong, where, what to do."""


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
    document: str = ""
    """Which document of the input, if there are several."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A row of a mapping table: a field of another API, with everything below it, or a flag of a launcher."""

    path: str
    """See `paths.pattern`."""
    outcome: Outcome
    to: str = ""
    why: str = ""
    instead: str = ""
    as_it_is: type | None = None
    """What its value is, which is that of `to` too. None: code sets `to`, or nothing does."""


def carried(path: str, to: str, why: str = "", *, of: type = int) -> Field:
    """The ElasticJob takes the value as it is."""
    return Field(path=path, outcome=Outcome.CARRIED, to=to, why=why, as_it_is=of)


def computed(path: str, to: str = "", why: str = "") -> Field:
    """Code sets `to`, from this field and others."""
    return Field(path=path, outcome=Outcome.CARRIED, to=to, why=why)


def changed(path: str, to: str, why: str, instead: str = "") -> Field:
    return Field(path=path, outcome=Outcome.CHANGED, to=to, why=why, instead=instead)


def irrelevant(path: str, why: str) -> Field:
    return Field(path=path, outcome=Outcome.IRRELEVANT, why=why)


def lost(path: str, why: str, instead: str = "") -> Field:
    return Field(path=path, outcome=Outcome.LOST, why=why, instead=instead)


Table = Sequence[Field]
_Rows = list[tuple[Pattern, Field]]
"""Rows that may say what becomes of a field, each with the steps that are left to the fields that it is about."""


def account(document: Mapping[str, Any], table: Table, notes: Sequence[Note]) -> list[Note]:
    """What became of every leaf of the document, in its order; notes on what is missing come last."""
    by_path: dict[Path, list[Note]] = {}
    for note in notes:
        by_path.setdefault(note.path, []).append(note)
    rows = [(pattern(row.path), row) for row in table]
    return list(dict.fromkeys([*_account(document, (), rows, by_path, []), *notes]))  # each once


def _account(
    value: Any, path: Path, rows: _Rows, by_path: Mapping[Path, list[Note]], inherited: list[Note]
) -> Iterator[Note]:
    """`inherited`: what is known of the parents. A note says more than any row, and a deeper row more than others."""
    ends = [row for steps, row in rows if not steps]
    if path in by_path:
        rows, inherited = [], by_path[path]
    elif ends:
        row = max(ends, key=_specificity)
        inherited = [Note(path, row.outcome, row.why, row.instead, row.to)]
    rows = [(steps, row) for steps, row in rows if steps]
    below = children(value)
    if not inherited and (not rows or (not below and value not in (None, {}, []))):
        yield Note(
            path,
            Outcome.UNKNOWN,
            "this API has no such field, or it is newer than this converter",
            "check its spelling; if it is new, set what it does in the ElasticJob",
        )
    elif not below:
        yield from inherited
    else:
        for step, item in below:
            nearer = [(steps[1:], row) for steps, row in rows if fits(steps[0], step)]
            yield from _account(item, (*path, step), nearer, by_path, inherited)


def _specificity(row: Field) -> int:
    return sum(step not in (ANY_KEY, ANY_INDEX) for step in pattern(row.path))
