"""The condition Accepted: whether the API server would create the job's worker pods.

The schema of the CRD cannot validate everything, so the operator asks the API server with a dry-run create, once per
generation. It does not ask if a pod with the same template exists: the server has accepted that template before, and a
quota that is exhausted now is not a fault of the manifest.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from elasticjob_api import REMEDY, ConditionType, ElasticJob, Reason, message

from elasticjob_operator.policies.condition_updates import Cause, ConditionUpdate, cause
from elasticjob_operator.policies.waits import of_rejection
from elasticjob_operator.resources.pods import shutdown_seconds
from elasticjob_operator.state import POD, Admission, Pod, Rejection

_NO_TIME_TO_SAVE = (
    " But worker processes have no time to save their state when their pod is deleted, for example because the job is "
    "suspended: its terminationGracePeriodSeconds is for the agent alone."
    f"{REMEDY}set it to more than 5, or set spec.lifecycle.gracefulShutdownSeconds."
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance(ConditionUpdate):
    """The condition Accepted. Status None: not known yet."""

    dry_run: bool = False
    """Ask the API server, by a dry-run create."""


def acceptance(
    job: ElasticJob,
    template_hash: str,
    pods: Iterable[Pod],
    admission: Admission | None,
    now: datetime.datetime,
    *,
    image_volume: bool = False,
) -> Acceptance:
    """`image_volume`: pods have the runtime as an image volume."""
    hasty = shutdown_seconds(job) == 0 and job.spec.lifecycle.graceful_shutdown_seconds is None
    warning = _NO_TIME_TO_SAVE if hasty else ""
    accepted = Acceptance(status=True, reason=Reason.ACCEPTED, message=message(Reason.ACCEPTED, warning=warning))
    if any(pod.template_hash == template_hash for pod in pods):
        return accepted
    before = job.status.condition(ConditionType.ACCEPTED)
    if before and job.status.is_true(ConditionType.ACCEPTED) and before.observed_generation == job.generation:
        return accepted
    known = (admission.template_hash, admission.image_volume) if admission is not None else None
    if admission is None or known != (template_hash, image_volume):
        return Acceptance(
            status=None, reason=Reason.ACCEPTED, message="Validating a worker pod with the API server.", dry_run=True
        )
    if not admission.rejection:
        return accepted
    due = admission.at + datetime.timedelta(seconds=admission.retry_seconds)
    if admission.invalid:
        found = cause(Reason.INVALID_POD_TEMPLATE, error=admission.rejection)
    else:
        found = of_rejection(job, Rejection(kinds=frozenset({POD}), message=admission.rejection, retry_at=due)).cause
    return Acceptance(
        status=False,
        reason=found.reason,
        message=found.message,
        dry_run=now >= due,
        requeue_at=due if now < due else None,
    )


def not_accepted(found: Cause) -> Acceptance:
    """For a cause that needs no dry run. Pods that run are left alone."""
    return Acceptance(status=False, reason=found.reason, message=found.message)
