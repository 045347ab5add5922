"""Whether a job has reached the state that a command waits for, and what it waits for otherwise. Pure."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from elasticjob.errors import UsageError
from elasticjob.state import JobState


class Target(str, enum.Enum):
    """States that a command can wait for."""

    STARTED = "Started"
    """It has training worker pods, or has had them."""
    RUNNING = "Running"
    FINISHED = "Finished"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    DELETED = "Deleted"

    __str__ = str.__str__

    @property
    def as_verb(self) -> str:
        """What a job does that reaches it.

        >>> Target.SUCCEEDED.as_verb, Target.SUSPENDED.as_verb
        ('succeed', 'be suspended')
        """
        verbs = {"Started": "start", "Running": "run", "Finished": "finish", "Succeeded": "succeed", "Failed": "fail"}
        return verbs.get(self.value, f"be {self.value.lower()}")


def target_of(text: str) -> Target:
    """A state, or what kubectl calls it: condition=Running, delete. Raises UsageError.

    >>> target_of("condition=running")
    <Target.RUNNING: 'Running'>
    """
    name = text.lower().removeprefix("condition=").removesuffix("=true")
    for target in Target:
        if name == target.value.lower() or (name == "delete" and target is Target.DELETED):
            return target
    raise UsageError(f"--for {text}: write one of {', '.join(Target)}, or condition=TYPE.")


class WaitOutcome(enum.Enum):
    WAITING = enum.auto()
    REACHED = enum.auto()
    FAILED = enum.auto()
    """The job has failed, and will not reach the state."""
    FINISHED = enum.auto()
    """The job has finished otherwise, and will not reach the state."""
    DELETED = enum.auto()


@dataclass(frozen=True)
class WaitResult:
    outcome: WaitOutcome
    waits_for: str = ""
    """One line for the person who waits."""


def wait_result(job: JobState | None, target: Target) -> WaitResult:
    """`job`: None if it is gone."""
    if job is None:
        return WaitResult(WaitOutcome.REACHED if target is Target.DELETED else WaitOutcome.DELETED)
    if target is Target.DELETED:
        return WaitResult(WaitOutcome.WAITING, f"{job.existing} worker pods are left")
    if _reached(job, target):
        return WaitResult(WaitOutcome.REACHED)
    if job.is_true("Failed"):
        return WaitResult(WaitOutcome.FAILED)
    if job.is_true("Succeeded"):
        return WaitResult(WaitOutcome.FINISHED)
    return WaitResult(WaitOutcome.WAITING, waits_for(job))


def _reached(job: JobState, target: Target) -> bool:
    if target is Target.FINISHED:
        return job.is_finished
    if target is Target.STARTED:
        return job.round > 0 or job.ready > 0 or job.is_finished
    return job.is_true(target.value)


def waits_for(job: JobState) -> str:
    """What has to happen next, in the operator's own words where it has said them."""
    if not job.is_seen:
        return "the operator has not seen the job yet"
    accepted, running = job.conditions.get("Accepted"), job.conditions.get("Running")
    if accepted is not None and accepted.status == "False":
        return accepted.message
    if job.is_queued:
        return job.conditions["Queued"].message
    if job.is_true("Running"):
        progress = job.progress
        step = f", step {progress.step}" if progress else ""
        return f"training with {job.world_size} processes in round {job.round}{step}"
    rendezvous = job.conditions.get("RendezvousReady")
    if rendezvous is not None and rendezvous.status != "True" and job.existing:
        return rendezvous.message
    return running.message if running is not None and running.message else job.summary


def said_of_resume(job: JobState, *, runs: bool) -> str:
    """What `elasticjob resume` says. `job`: after the request. `runs`: it has been waited for."""
    if runs:
        return f"{job.name} is running."
    if job.is_queued:
        return f"{job.name} is not suspended: it waits in queue {job.queue}. {job.conditions['Queued'].message}"
    if job.queue:
        return f"{job.name} is being resumed: it returns to queue {job.queue}."
    return f"{job.name} is being resumed."


SOON, RARELY = 10.0, 300.0
"""Where there is no terminal, something else is worth a line this often, and other numbers this often, s."""


def worth_a_line(text: str, last: str, since: float) -> bool:
    """Whether to say what is waited for. `last`: what was said `since` seconds ago; empty: nothing.

    >>> [worth_a_line("step 2", last, 60) for last in ("", "step 1", "1 of 2 worker pods are ready")]
    [True, False, True]
    """
    numbers_only = re.sub(r"\d+", "", text) == re.sub(r"\d+", "", last)
    return text != last and (not last or since >= (RARELY if numbers_only else SOON))


def why_failed(job: JobState) -> str:
    """The reason of the failure, with the last lines of the traceback."""
    failed = job.conditions.get("Failed")
    text = failed.message if failed is not None and failed.is_true else ""
    failure = job.failure
    if failure is not None and failure.message and failure.message not in text:
        text = f"{text}\n{failure.message}"
    return text.strip() or "The job failed."
