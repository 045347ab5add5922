"""The condition Stalled: whether running workers make progress.

Agents look for hangs, and what they are sure of is said first: which rank hangs, where, and what the others wait in.
Besides, a script that reports its steps is expected to go on doing so. The limit grows with the duration of a step.
Time counts from when this operator first saw the latest step, not from what a node's clock says, and not before etcd
became reachable: nothing is reported while it is not.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence

from elasticjob_api import ConditionType, ElasticJob, Progress, Reason
from elasticjob_api.fields import format_time
from elasticjob_runtime.contract import HangValue

from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.state import Connectivity, Pod, RendezvousView

STALL_SECONDS = 60.0
"""Workers have stalled if they report no step for this long, in seconds ..."""
STALL_STEPS = 30
"""... and for as long as this many steps have taken."""
SHOWN = 3
"""Worker pods that the message names."""
MAX_WHY = 300
"""Characters of what an agent says."""


def stalled(
    job: ElasticJob,
    view: RendezvousView,
    progress: Progress | None,
    workers: Iterable[Pod],
    *,
    running: bool,
    now: datetime.datetime,
) -> ConditionUpdate | None:
    """None: leave the condition as it is. `progress`: with the time at which this operator first saw it."""
    progressing, before = update(False, Reason.PROGRESSING), job.status.condition(ConditionType.STALLED)
    ended = progressing if before else None
    if not running:
        return ended
    if (hang := _hang(job, view, workers)) is not None:
        return hang
    if before is not None and before.reason == Reason.HANG and view.progress is None:
        return progressing
    if (
        progress is None
        or progress.observed_at is None
        or view.progress is None
        or view.connectivity is not Connectivity.REACHABLE
    ):
        return None
    if view.plan is None or view.progress.round != view.plan.round:
        return ended
    if progress.step == 0 and progress.percent is not None:
        return ended  # a script that counts no steps
    due = _since(job, progress.observed_at) + datetime.timedelta(seconds=limit(progress.steps_per_second))
    if now >= due:
        return update(True, Reason.NO_PROGRESS, step=progress.step, since=format_time(progress.observed_at))
    return dataclasses.replace(progressing, requeue_at=due)


def later(view: RendezvousView, now: datetime.datetime) -> datetime.datetime | None:
    """When to look again whether training has stalled that was expected to have by now. None: at once, since it has not
    gone on for long enough."""
    due = view.progress_seen_at + datetime.timedelta(seconds=STALL_SECONDS) if view.progress_seen_at else now
    return due if due > now else None


def _hang(job: ElasticJob, view: RendezvousView, workers: Iterable[Pod]) -> ConditionUpdate | None:
    """None: no agent is sure of one in this round."""
    current = [hang for hang in view.hangs if view.plan is not None and hang.round == view.plan.round]
    if not current:
        return None
    places = {pod.name: f"{pod.name} {pod.place}".rstrip() for pod in workers}
    hangs = [hang for hang in current if hang.member in places]  # its script may have written any name
    if not any(hang.certain for hang in hangs):
        return None
    named = sorted((hang for hang in hangs if hang.ranks), key=lambda hang: not hang.certain)
    told = named or hangs[:1]
    first = told[0]
    why = "; ".join(f"{hang.why[:MAX_WHY]} (worker pod {places[hang.member]})" for hang in told[:SHOWN])
    if len(told) > SHOWN:
        why += f"; and {len(told) - SHOWN} more"
    remedy = f"read the stacks of all ranks: elasticjob stacks {job.name} -n {job.namespace}, or those in its log: "
    remedy += f"kubectl logs {first.member} -n {job.namespace}"
    return update(
        True,
        Reason.HANG,
        why=why + _waits(hangs, told),
        since=format_time(datetime.datetime.fromtimestamp(min(hang.since for hang in hangs), datetime.timezone.utc)),
        consequence="Hangs are only reported (spec.failurePolicy.hang.action)."
        if first.reports_only
        else "Nothing shows that a restart would help: without a step, the worker processes restart after 30 minutes.",
        remedy=remedy,
    )


def _waits(hangs: Sequence[HangValue], told: Sequence[HangValue]) -> str:
    """What the worker processes of a member wait in that is not to blame, unless that was said."""
    if any(" wait" in hang.why for hang in told):
        return ""
    waiting = next((hang for hang in hangs if hang.waits_in and hang not in told), None)
    return f", while the ranks of {waiting.member} wait in {waiting.waits_in[:MAX_WHY]}" if waiting is not None else ""


def limit(steps_per_second: float | None) -> float:
    """How long workers may go without a step before they have stalled, in seconds."""
    return max(STALL_SECONDS, STALL_STEPS / steps_per_second) if steps_per_second else STALL_SECONDS


def _since(job: ElasticJob, seen: datetime.datetime) -> datetime.datetime:
    ready = job.status.condition(ConditionType.RENDEZVOUS_READY)
    return max(seen, ready.last_transition_time) if ready is not None else seen
