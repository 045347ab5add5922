"""Whether the API server would take the job's worker pods: the condition Accepted.

What the schema cannot see is asked of the server itself, by a dry-run create, once for each generation - unless a pod
of the same template exists: then it did take one, and quota that is used up now is no fault of the manifest.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from elasticjob_operator.api import ConditionType, ElasticJob, Reason, message
from elasticjob_operator.state import Admission, Pod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    accepted: bool | None
    """None: not known yet."""
    reason: Reason
    message: str
    ask: bool = False
    """Ask the API server."""
    requeue_at: datetime.datetime | None = None


def judge(
    job: ElasticJob, template_hash: str, pods: Iterable[Pod], admission: Admission | None, now: datetime.datetime
) -> Verdict:
    yes = Verdict(accepted=True, reason=Reason.ACCEPTED, message=message(Reason.ACCEPTED))
    if any(pod.template_hash == template_hash for pod in pods):
        return yes
    before = job.status.condition(ConditionType.ACCEPTED)
    if before and job.status.is_true(ConditionType.ACCEPTED) and before.observed_generation == job.generation:
        return yes
    if admission is None or admission.template_hash != template_hash:
        return Verdict(
            accepted=None, reason=Reason.ACCEPTED, message="Validating a worker pod with the API server.", ask=True
        )
    if not admission.rejection:
        return yes
    due = admission.at + datetime.timedelta(seconds=admission.retry_seconds)
    reason = Reason.INVALID_POD_TEMPLATE if admission.invalid else Reason.POD_REFUSED
    return Verdict(
        accepted=False,
        reason=reason,
        message=message(reason, error=admission.rejection),
        ask=now >= due,
        requeue_at=due if now < due else None,
    )


def refused_endpoint(endpoint: str) -> Verdict:
    """Not among those that jobs may name. What runs already is left alone, but the operator does not talk to that
    address."""
    reason = Reason.ENDPOINT_NOT_ALLOWED
    return Verdict(accepted=False, reason=reason, message=message(reason, endpoint=endpoint))


def refused_template(error: Exception) -> Verdict:
    """The template cannot even become a pod to ask about."""
    reason = Reason.INVALID_POD_TEMPLATE
    return Verdict(accepted=False, reason=reason, message=message(reason, error=error))
