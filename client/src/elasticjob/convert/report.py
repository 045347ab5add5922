"""What could not be carried over, for people, for programs, and as comments in the manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from elasticjob.convert.conversion import Converted
from elasticjob.convert.paths import show
from elasticjob.convert.table import Note, Outcome

_COUNTED = {
    Outcome.CARRIED: "carried over",
    Outcome.IRRELEVANT: "not needed",
    Outcome.CHANGED: "different",
    Outcome.LOST: "not carried over",
    Outcome.UNKNOWN: "unknown",
    Outcome.MISSING: "missing",
}
HEADINGS = {
    Outcome.MISSING: "Missing: add it before you apply the manifest",
    Outcome.LOST: "Not carried over",
    Outcome.UNKNOWN: "Unknown fields, not carried over",
    Outcome.CHANGED: "Carried over, but works differently",
}
"""What people must read, in order of importance."""
INCOMPLETE = frozenset({Outcome.MISSING, Outcome.LOST, Outcome.UNKNOWN})


def is_complete(converted: Iterable[Converted]) -> bool:
    """Whether nothing is missing or lost."""
    return not any(note.outcome in INCOMPLETE for each in converted for note in each.notes)


def _where(note: Note, converted: Converted) -> str:
    other = f"{note.document}: " if note.document not in ("", converted.source) else ""
    return other + show(note.path)


def _lines(converted: Converted) -> list[str]:
    """The report on one object, without its name."""
    lines: list[str] = []
    for outcome, heading in HEADINGS.items():
        notes = [note for note in converted.notes if note.outcome is outcome]
        if notes:
            lines.append(f"{heading}:")
        for note in notes:
            lines.append(f"  {_where(note, converted)}")
            lines.append(f"      {note.why}")
            lines += [f"      instead: {note.instead}"] if note.instead else []
    return lines


def text(converted: Sequence[Converted]) -> str:
    """For people."""
    lines: list[str] = []
    for each in converted:
        if not each.notes:
            lines.append(f"{each.source}: not a job, kept as it is.")
            continue
        counts = Counter(note.outcome for note in each.notes)
        summary = ", ".join(f"{counts[outcome]} {word}" for outcome, word in _COUNTED.items() if counts[outcome])
        lines.append(f"{each.source} -> {each.manifest['kind']}/{_name(each)}: {summary}.")
        lines += _lines(each)
    return "\n".join(lines) + "\n"


def _name(converted: Converted) -> str:
    metadata = converted.manifest.get("metadata") or {}
    return str(metadata.get("name") or f"{metadata.get('generateName')}...")


def comments(converted: Converted) -> str:
    """For the head of the manifest."""
    return "".join(f"# {line}\n" for line in _lines(converted))


def as_json(converted: Sequence[Converted]) -> str:
    """For programs: every field, also those that were carried over."""
    objects: list[dict[str, Any]] = [
        {
            "source": each.source,
            "result": f"{each.manifest.get('kind')}/{_name(each)}",
            "complete": is_complete([each]),
            "fields": [_entry(note, each) for note in each.notes],
        }
        for each in converted
    ]
    return json.dumps({"objects": objects}, indent=2, ensure_ascii=False) + "\n"


def _entry(note: Note, converted: Converted) -> dict[str, Any]:
    entry = {
        "document": note.document or converted.source,
        "path": show(note.path),
        "outcome": str(note.outcome),
        "to": note.to,
        "why": note.why,
        "instead": note.instead,
    }
    return {key: value for key, value in entry.items() if value}
