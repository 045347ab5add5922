"""Whether a job can be scaled, suspended or resumed, before the API server is asked. Pure."""

from __future__ import annotations

from elasticjob.errors import ElasticJobError, UsageError
from elasticjob.state import JobState


def check_scale(job: JobState, workers: int) -> None:
    """Raises UsageError, or ElasticJobError if the job has finished."""
    if job.is_finished:
        raise ElasticJobError(f"{job.name} has finished ({job.summary}): it cannot be scaled.")
    if job.least <= workers <= job.most:
        return
    change = f'kubectl patch ej {job.name} -n {job.namespace} --type merge -p \'{{"spec": {{"workers": '
    bound = f'{{"maxReplicas": {workers}}}' if workers > job.most else f'{{"minReplicas": {workers}}}'
    if workers < 1:
        raise UsageError(
            f"A job has at least one worker pod, not {workers}.",
            f"To stop it for a while: elasticjob suspend {job.name}",
        )
    sizes = f"{job.least} to {job.most}" if job.least != job.most else f"exactly {job.most}"
    raise UsageError(
        f"{job.name} trains with {sizes} worker pods, not with {workers}.", f"To change that: {change}{bound}}}}}'"
    )


def check_suspend(job: JobState, *, suspend: bool) -> None:
    """Raises ElasticJobError if the job has finished."""
    if job.is_finished:
        word = "suspended" if suspend else "resumed"
        raise ElasticJobError(
            f"{job.name} has finished ({job.summary}): it cannot be {word}.",
            "" if suspend else "Submit it again under another name: it can continue from the same checkpoints.",
        )
