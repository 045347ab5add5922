"""Whether a job fails as soon as its script has failed twice in the same way, or does not exist
(failurePolicy.beforeFirstStep).

The agents decide about exceptions of worker processes, because they restart them (membership/crash_loop.py of the
runtime); the operator tells them whether they may. It decides about agents that cannot start the script at all.

A job has trained once a step or a checkpoint was reported in one of its runs, or once a worker group ran for a minute.
"""

from __future__ import annotations

import itertools

from elasticjob_api import BeforeFirstStep, ChangeType, ElasticJob, Failure
from elasticjob_runtime.contract import ExitCode

from elasticjob_operator import names
from elasticjob_operator.policies.failures import PodFailure, action_for

TRAINED_SECONDS = 60.0
"""A worker group that ran for this long has trained, even if no step was reported, in seconds."""


def fails_fast(job: ElasticJob) -> bool:
    """Whether agents may end the job."""
    policy = job.spec.failure_policy
    rule = action_for(policy.rules, int(ExitCode.WORKERS_FAILED), "ApplicationError")
    return policy.before_first_step is BeforeFirstStep.FAIL and rule is None and not _has_trained(job)


def cannot_start(job: ElasticJob, failure: PodFailure, last: Failure | None) -> bool:
    """Whether an agent, in a job that has never started its script, found no script in its image, or rejected its flags
    for the second time."""
    code, policy = failure.exit_code, job.spec.failure_policy
    again = last is not None and last.exit_code == code and last.reason == failure.reason
    fails = code == ExitCode.NO_SCRIPT or (code == ExitCode.USAGE and again)
    ruled = action_for(policy.rules, code, failure.reason) is not None
    return fails and not ruled and job.status.round == 0 and fails_fast(job)


def _has_trained(job: ElasticJob) -> bool:
    """The agents know what the current run has done."""
    status = job.status
    if status.progress is not None or status.optimizer_steps is not None:
        return True
    if status.history is None or status.rendezvous is None:
        return False
    if names.run_of(status.rendezvous.id, job.uid) == names.FIRST_RUN:
        return False
    return any(
        one.type == ChangeType.ROUND and (after.time - one.time).total_seconds() >= TRAINED_SECONDS
        for one, after in itertools.pairwise(status.history.read().changes)
    )
