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
    return not any(note.outcome in INCOMPLETE for job in converted for note in job.notes)


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
    for job in converted:
        if not job.notes:
            lines.append(f"{job.source}: not a job, kept as it is.")
            continue
        counts = Counter(note.outcome for note in job.notes)
        summary = ", ".join(f"{counts[outcome]} {word}" for outcome, word in _COUNTED.items() if counts[outcome])
        lines.append(f"{job.source} -> {job.manifest['kind']}/{_name(job)}: {summary}.")
        lines += _lines(job)
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
            "source": job.source,
            "result": f"{job.manifest.get('kind')}/{_name(job)}",
            "complete": is_complete([job]),
            "fields": [_entry(note, job) for note in job.notes],
        }
        for job in converted
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
