"""Which pods and objects of a finished job are deleted, and when.

Agents exit within a second of the job's outcome, and a pod that ends on its own keeps its log. So pods that still run,
even if only because of a sidecar, are deleted after a grace period. The job's own etcd and its Services are deleted
once no agent runs.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence

from elasticjob_api import CleanPods

from elasticjob_operator.policies.pod_state import PodState
from elasticjob_operator.state import Pod

GRACE_SECONDS = 10.0
"""Time for the agents to exit on their own, in seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cleanup:
    delete: tuple[Pod, ...] = ()
    all_ended: bool = False
    """No agent runs: etcd, Services and the run's keys can be deleted."""
    requeue_at: datetime.datetime | None = None


def clean_up(
    policy: CleanPods,
    pods: Iterable[tuple[Pod, PodState]],
    completed_at: datetime.datetime,
    now: datetime.datetime,
    *,
    job_failed: bool = False,
) -> Cleanup:
    """`pods`: the job's worker pods. `job_failed`: pods that still run are deleted whatever the policy, because their
    agents may not know that the job has failed."""
    known = list(pods)
    if policy is CleanPods.NONE and job_failed:
        policy = CleanPods.RUNNING
    lost = any(state is PodState.LOST for _, state in known)
    active = [pod for pod, state in known if state in (PodState.LIVE, PodState.TERMINATING, PodState.UNREACHABLE)]
    live = [pod for pod in active if not pod.terminating]
    ended = [pod for pod, state in known if state in (PodState.FAILED, PodState.SUCCEEDED)]
    # The training container has ended, but a sidecar still runs: the pod still holds its GPUs.
    holding = [pod for pod in ended if not pod.over and not pod.terminating]
    wanted = _to_delete(policy, [*live, *holding], [pod for pod in ended if pod not in holding])
    due = completed_at + datetime.timedelta(seconds=GRACE_SECONDS)
    wait = bool(wanted and (live or holding) and now < due)
    return Cleanup(
        delete=() if wait else tuple(wanted),
        all_ended=not active and not lost,
        requeue_at=due if wait else None,
    )


def _to_delete(policy: CleanPods, live: Sequence[Pod], ended: Sequence[Pod]) -> list[Pod]:
    if policy is CleanPods.ALL:
        return [*live, *ended]
    return list(live) if policy is CleanPods.RUNNING else []
