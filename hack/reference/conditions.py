"""docs/reference/conditions.md: condition types, reasons with their messages, and Events, from elasticjob_api."""

from __future__ import annotations

import re
from itertools import groupby

from elasticjob_api import BLOCKING_REASONS, MESSAGES, ConditionType, Reason

from hack.reference.source import assignments

INTRODUCTION = """\
# Conditions and Events

`kubectl describe elasticjob NAME` shows a job's conditions and Events, and the column Status of `kubectl get elasticjobs` shows the state in one word.
Conditions say how things are now; an Event says that a condition changed, or that the operator created or deleted something.
[Debug a job](../guides/debugging.md) says what to do about each reason.

Values that differ from job to job are written {like this}.
**Needs action** marks reasons that may keep a job from running until someone does something; their Events are warnings.
"""

EVENTS = """\
Every change of a condition's status or reason is an Event with the same reason and message, except the changes that each job goes through: starting, waiting for workers, and resizing.
Events have no times in their text, so the same Event again is counted (`x5 over 10m` in `kubectl describe`), and from the eleventh text for one reason within ten minutes on they are combined into one.
With the runtime as an image volume, the kubelet itself repeats its Event `Pulled` for each worker pod; the operator has no influence on that.
"""


def page() -> str:
    """The page. A pure function of the code."""
    types = {assignment.name: assignment.docstring for assignment in assignments(ConditionType)}
    parts = [INTRODUCTION, "## Conditions", "", "In the order in which a job goes through them:", ""]
    parts += ["| type | True means |", "|---|---|"]
    parts += [f"| `{item.value}` | {types[item.name]} |" for item in ConditionType]
    parts += ["", "## Reasons", ""]
    for section, reasons in groupby(assignments(Reason), key=lambda item: item.section):
        title, _, remark = section.partition(". ")
        parts += [f"### {title}", "", *([_remark(remark), ""] if remark else [])]
        parts += [EVENTS] if title == "Events only" else []
        parts += ["| reason | message | |", "|---|---|---|"]
        parts += [_row(Reason[reason.name], reason.docstring) for reason in reasons]
        parts.append("")
    return "\n".join(parts)


def _remark(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _row(reason: Reason, docstring: str) -> str:
    text = re.sub(r"<([^>]*)>", r"`<\1>`", MESSAGES[reason])
    remarks = [docstring] if docstring else []
    if reason in BLOCKING_REASONS:
        remarks.insert(0, "**Needs action.**")
    return f"| `{reason}` | {text} | {' '.join(remarks)} |".replace("  |", " |")
