"""When the status of a job is written: at most once a second, and at once what deeds wait for.

The first change after a quiet second is written at once, what follows within that second in one go at its end. Until
then the next rounds go on from the status that is not written yet, so that a condition which turned twice has turned
twice, with both Events. A killed operator loses a second of that: its successor judges the same world from the last
status that was written, as after a kill before any write.

A round that created or deleted something leaves its status to the next one, which knows what came of it and is on its
way already: one write then says that a job is accepted and has four workers, or that a worker was replaced.

Some deeds must not come before what they follow from is written: a failed pod is counted, then deleted; a job has
ended, then its pods go; it rests, then it can begin a new run; a lost etcd is given up, then it goes. Holding these
back would hold back pods, so they are written at once. They are few: a failed pod that counts against the budget (a
group that fails together is one), and the turns of a job's life.
"""

from __future__ import annotations

from elasticjob_operator.api import ConditionType, Status

STATUS_SECONDS = 1.0
NEWS_SECONDS = 0.25
"""By when news of what was done should have woken the job: the answer itself, or its echo from the watch."""
FIRST_CONFLICT, LONGEST_CONFLICT = 0.05, 2.0
"""Between tries to write the status of a job that changes all the time, s."""


def seconds_to_hold(written: Status, wanted: Status, since: float, *, done: bool = False, held: float = 0.0) -> float:
    """For how long `wanted` is not written yet, unless another round comes first, s.

    `written`: what the API server has; `since`: s since that was written; `done`: this round created or deleted
    something; `held`: s since something was first held back.
    """
    if deeds_wait(written, wanted):
        return 0.0
    rest = max(0.0, STATUS_SECONDS - since)
    return max(rest, NEWS_SECONDS) if done and held < STATUS_SECONDS else rest


def conflict_wait(conflicts: int) -> float:
    """Before a job is decided on anew whose status write came too late, s. `conflicts`: how many did before, in a row.

    The first time at once: the newer job is known by then. Longer each time for a job that somebody edits without a
    pause.
    """
    return 0.0 if conflicts == 0 else min(LONGEST_CONFLICT, FIRST_CONFLICT * 2.0 ** min(conflicts - 1, 10))


def deeds_wait(written: Status, wanted: Status) -> bool:
    """Whether there is something in `wanted` that must be written before what follows from it is done."""
    failure = wanted.last_failure
    pod_is_counted = failure is not None and failure.rank is None and failure != written.last_failure
    return pod_is_counted or _turns(written) != _turns(wanted) or _etcd_is_given_up(written, wanted)


def _etcd_is_given_up(written: Status, wanted: Status) -> bool:
    after = wanted.rendezvous
    return after is not None and bool(after.store_generation) and not after.store_pod and after != written.rendezvous


def _turns(status: Status) -> tuple[bool, bool]:
    return status.is_finished, status.is_true(ConditionType.SUSPENDED)


def as_written(status: Status) -> Status:
    """As it will be read again: times have whole seconds."""
    return Status.model_validate(status.to_api())
