"""The status of a job that this operator cannot even read."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from elasticjob_operator.api import ConditionType, InvalidJobError, Reason, Status, message, set_condition, summary_of
from elasticjob_operator.planning.actions import Plan
from elasticjob_operator.planning.events import tell


def refuse(body: Mapping[str, Any], error: InvalidJobError, now: datetime.datetime) -> Plan:
    """`body`: the object as the API server has it. A newer operator may have written what this one cannot read: nothing
    is touched."""
    before = Status.model_validate(body.get("status") or {})
    generation = body.get("metadata", {}).get("generation")
    text = message(Reason.INVALID_SPEC, error=error)
    conditions = set_condition(
        before.conditions,
        type=ConditionType.ACCEPTED,
        status=False,
        reason=Reason.INVALID_SPEC,
        message=text,
        generation=generation,
        now=now,
    )
    status = before.model_copy(
        update={"observed_generation": generation, "conditions": conditions, "summary": summary_of(conditions)}
    )
    return Plan(status=status, stories=tell(before, status))
