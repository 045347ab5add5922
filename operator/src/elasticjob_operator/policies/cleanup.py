"""What is left of a job that has ended.

Agents that learn of the outcome end by themselves within a second, and a pod that ended by itself keeps its log: so
pods that still run, if only because of a sidecar, are deleted after a grace. The job's own etcd and the Services go
when no agent runs any more.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence

from elasticjob_operator.api import CleanPods
from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.state import Pod

GRACE_SECONDS = 10.0
"""Time for the agents to end by themselves, s."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cleanup:
    delete: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    """Lost with their nodes."""
    all_ended: bool = False
    """No agent runs any more: etcd, Services and the run's keys may go."""
    requeue_at: datetime.datetime | None = None


def clean_up(
    policy: CleanPods,
    pods: Iterable[tuple[Pod, PodState]],
    completed_at: datetime.datetime,
    now: datetime.datetime,
    *,
    job_failed: bool = False,
) -> Cleanup:
    """`pods`: the job's worker pods. `job_failed`: what still runs trains for nothing, and the agents may not know."""
    known = list(pods)
    if policy is CleanPods.NONE and job_failed:
        policy = CleanPods.RUNNING
    lost = tuple(pod for pod, state in known if state is PodState.LOST)
    active = [pod for pod, state in known if state in (PodState.LIVE, PodState.LEAVING, PodState.STRANDED)]
    live = [pod for pod in active if not pod.terminating]
    ended = [pod for pod, state in known if state in (PodState.FAILED, PodState.SUCCEEDED)]
    # The trainer has ended there, but a sidecar runs on: the pod still has its GPUs.
    holding = [pod for pod in ended if not pod.over and not pod.terminating]
    wanted = _doomed(policy, [*live, *holding], [pod for pod in ended if pod not in holding])
    due = completed_at + datetime.timedelta(seconds=GRACE_SECONDS)
    wait = bool(wanted and (live or holding) and now < due)
    return Cleanup(
        delete=() if wait else tuple(wanted),
        force=lost,
        all_ended=not active and not lost,
        requeue_at=due if wait else None,
    )


def _doomed(policy: CleanPods, live: Sequence[Pod], ended: Sequence[Pod]) -> list[Pod]:
    if policy is CleanPods.ALL:
        return [*live, *ended]
    return list(live) if policy is CleanPods.RUNNING else []
