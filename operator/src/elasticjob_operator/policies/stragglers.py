"""Ranks that are slow, as rank 0's agent reports them, and whether the worker pod of one is replaced.

With `spec.failurePolicy.stragglers: Replace`, that needs a second sign that the machine is slow, all worker pods
training, minReplicas of them without it, and that new worker pods avoid the node. First, status.failingNodes gets the
node, with the pod's name: then nothing else is replaced for ten minutes. Once that is written, the pod is deleted, so
that a job whose status cannot be written, or whose operator restarts, does not lose a second one.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence

from elasticjob_api import ElasticJob, FailingNode, Reason, Status, StragglerAction
from elasticjob_api.status import MAX_CHECK
from elasticjob_runtime.contract import Straggler

from elasticjob_operator.policies.condition_updates import ConditionUpdate, update
from elasticjob_operator.policies.pod_state import PodState, PodStatus
from elasticjob_operator.state import Pod, RendezvousView

PAUSE = datetime.timedelta(minutes=10)
"""Between two replacements."""
SHOWN = 8
"""Ranks that the condition names."""
_SLOW = "slow: "
"""How the entry of a node begins on which a rank was slow."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """A straggler, on its worker pod."""

    rank: int
    pod: Pod
    text: str
    signs: tuple[str, ...]

    def __str__(self) -> str:
        signs = "".join(f"; {sign}" for sign in self.signs)
        return f"rank {self.rank} in {self.pod.name} on node {self.pod.node}: {self.text}{signs}"


def slow_ranks(view: RendezvousView, workers: Iterable[tuple[Pod, PodStatus]]) -> list[SlowRank]:
    """Of the round that trains, by rank."""
    value = view.stragglers
    if value is None or view.plan is None or value.round != view.plan.round:
        return []
    pods = {pod.name: pod for pod, status in workers if status.state is PodState.LIVE}
    known = [(straggler, pods[straggler.member]) for straggler in value.stragglers if straggler.member in pods]
    return [
        SlowRank(
            rank=straggler.rank,
            pod=pod,
            text=straggler.text,
            signs=(*straggler.signs, *_of_node(straggler, pod, known)),
        )
        for straggler, pod in known
    ]


def _of_node(straggler: Straggler, pod: Pod, known: Sequence[tuple[Straggler, Pod]]) -> list[str]:
    others = [str(other.rank) for other, its in known if its.node == pod.node and other.rank != straggler.rank]
    return [f"rank {others[0]} is slow on that node, too"] if pod.node and others else []


def found(job: ElasticJob, slow: Sequence[SlowRank]) -> ConditionUpdate:
    """The condition StragglersFound."""
    if not slow:
        return update(False, Reason.NO_STRAGGLERS)
    ranks = ". ".join(map(str, slow[:SHOWN])) + (f". And {len(slow) - SHOWN} more" if len(slow) > SHOWN else "")
    remedy = f"look for what slows it down; to replace its worker pod: kubectl delete pod {slow[0].pod.name}"
    if job.spec.failure_policy.stragglers is StragglerAction.REPLACE:
        if _avoids_nodes(job):
            remedy = "nothing, if its machine has a second sign of being slow: its worker pod is replaced"
        else:
            remedy = f"with scheduling.avoidNodesAfter: 0, no worker pod is replaced, so {remedy}"
    return update(True, Reason.RANKS_SLOW, ranks=ranks, remedy=remedy)


def node_to_avoid(
    job: ElasticJob,
    view: RendezvousView,
    slow: Sequence[SlowRank],
    workers: Sequence[tuple[Pod, PodStatus]],
    now: datetime.datetime,
) -> FailingNode | None:
    """The node whose worker pod is to be replaced, because a rank is slow there. `workers`: that are to stay."""
    if not _may_replace(job, view, workers) or _replaced_since(job, now - PAUSE):
        return None
    chosen = next((one for one in slow if one.signs and one.pod.node), None)
    if chosen is None:
        return None
    text = f"{_SLOW}rank {chosen.rank} in {chosen.pod.name}: {chosen.text}; {chosen.signs[0]}"
    return FailingNode(
        name=chosen.pod.node,
        failures=job.spec.scheduling.avoid_nodes_after,
        last_time=now.replace(microsecond=0),
        check=text[:MAX_CHECK],
    )


def pod_to_replace(
    job: ElasticJob,
    view: RendezvousView,
    slow: Sequence[SlowRank],
    workers: Sequence[tuple[Pod, PodStatus]],
    now: datetime.datetime,
) -> tuple[Pod, str] | None:
    """The pod whose node is in the status that is *written*, and why it is deleted."""
    entries = {entry.name: entry for entry in _replaced_since(job, now - PAUSE)}
    for one in slow if _may_replace(job, view, workers) else ():
        entry = entries.get(one.pod.node)
        if entry is not None and f" in {one.pod.name}: " in (entry.check or ""):
            return one.pod, f"it is slow: {one}"
    return None


def replace_again_at(job: ElasticJob, slow: Sequence[SlowRank], now: datetime.datetime) -> datetime.datetime | None:
    """When another worker pod may be replaced; None: now, or none is slow."""
    if not slow:
        return None
    return max((entry.last_time + PAUSE for entry in _replaced_since(job, now - PAUSE)), default=None)


def marked_nodes(status: Status) -> frozenset[tuple[str, str]]:
    """(name, check) of the nodes on which a rank was slow: the pod that the check names is deleted once they are
    written."""
    return frozenset((entry.name, entry.check or "") for entry in status.failing_nodes or () if _is_slow(entry))


def with_node(failing: Sequence[FailingNode], node: FailingNode | None) -> tuple[FailingNode, ...]:
    """`failing` with this entry instead of the one that it has of that node."""
    if node is None:
        return tuple(failing)
    return tuple(sorted([*(one for one in failing if one.name != node.name), node], key=lambda one: one.name))


def _may_replace(job: ElasticJob, view: RendezvousView, workers: Sequence[tuple[Pod, PodStatus]]) -> bool:
    """All wanted worker pods train, the others are enough, and the replacement will avoid the node."""
    if job.spec.failure_policy.stragglers is not StragglerAction.REPLACE or view.plan is None or not _avoids_nodes(job):
        return False
    live = [pod for pod, status in workers if status.state is PodState.LIVE and pod.may_train and not pod.terminating]
    return len(live) == len(workers) == job.replicas == view.plan.size and job.replicas > job.min_replicas


def _avoids_nodes(job: ElasticJob) -> bool:
    return job.spec.scheduling.avoid_nodes_after > 0


def _replaced_since(job: ElasticJob, since: datetime.datetime) -> list[FailingNode]:
    return [entry for entry in job.status.failing_nodes or () if _is_slow(entry) and entry.last_time > since]


def _is_slow(entry: FailingNode) -> bool:
    return (entry.check or "").startswith(_SLOW)
