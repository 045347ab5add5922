"""ElasticJobProgress: the newest progress of a job, in an object of its own, which is cheaper to write than the job."""

from __future__ import annotations

from elasticjob_api.fields import Model
from elasticjob_api.status import OptimizerSteps, Progress

KIND = "ElasticJobProgress"
PLURAL = "elasticjobprogresses"
SINGULAR = "elasticjobprogress"


class JobProgress(Model, frozen=True):
    """Progress of the ElasticJob of the same name, where it is newer than status.progress of the job. Written by the
    operator only, and deleted with the job."""

    progress: Progress | None = None
    """Progress that the training last reported."""
    optimizer_steps: OptimizerSteps | None = None
    """Steps of a script that reports no progress."""
