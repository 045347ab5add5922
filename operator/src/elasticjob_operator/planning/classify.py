"""The world sorted for one plan: which worker pods there are, where each stands, who stays and who leaves."""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob_operator import names
from elasticjob_operator.api import ElasticJob, RendezvousBackend
from elasticjob_operator.policies.lifecycle import outlived_its_template
from elasticjob_operator.policies.node_loss import Held, LossRules, Nodes, count_nodes
from elasticjob_operator.policies.pod_state import PodState, PodStatus, pod_state_of
from elasticjob_operator.policies.rendezvous import Rendezvous, rendezvous_of, unknown_end, with_store
from elasticjob_operator.policies.scale_up_delay import Growth
from elasticjob_operator.policies.scaling import Scaling, scale
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState, Pod


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Classified:
    rendezvous: Rendezvous
    workers: tuple[tuple[Pod, PodStatus], ...]
    """Pods of the current run, by index."""
    stale: tuple[tuple[Pod, PodStatus], ...]
    """Pods of earlier runs: garbage."""
    etcd: tuple[tuple[Pod, PodStatus], ...]
    """Pods of the job's own etcd."""
    scaling: Scaling
    growth: Growth
    unknown_end: Held | None = None
    """Why no worker is created: the job may have ended while nobody looked."""

    @property
    def staying(self) -> tuple[tuple[Pod, PodStatus], ...]:
        leaving = {pod.uid for pod in self.scaling.surplus}
        return tuple(
            (pod, stand)
            for pod, stand in self.workers
            if pod.uid not in leaving and stand.state is not PodState.STRANDED
        )

    @property
    def to_ask(self) -> list[str]:
        """Nodes whose heartbeat must be read before what is on them is given up."""
        return sorted({stand.ask for _, stand in (*self.workers, *self.stale, *self.etcd) if stand.ask})

    @property
    def held(self) -> Held | None:
        """Why something on a node that does not answer is not given up; the etcd's before the workers'."""
        return next((stand.held for _, stand in (*self.etcd, *self.staying) if stand.held is not None), None)

    @property
    def ready_store_pod(self) -> str:
        """Changes when the job's own etcd comes up."""
        return ",".join(pod.uid for pod, _ in self.etcd if pod.ready) if self.rendezvous.managed else ""

    @property
    def timers(self) -> list[datetime.datetime]:
        return [
            stand.requeue_at for _, stand in (*self.workers, *self.stale, *self.etcd) if stand.requeue_at is not None
        ]


def classify(
    job: ElasticJob, world: JobState, settings: Settings, now: datetime.datetime, growth: Growth
) -> Classified:
    """`job` wants as many workers as `growth` says."""

    nodes, rules = _nodes(world), _rules(job, settings)
    # Another etcd has another number, so the group that goes on with this one is no danger: nobody waits for its end.
    rules_of_etcd = dataclasses.replace(rules, fenced=False)

    def stand(pod: Pod) -> PodStatus:
        return pod_state_of(pod, nodes, rules, now)

    pods = [pod for pod in world.pods if pod.component == names.COMPONENT_WORKER and _has_its_name(job, pod)]
    rendezvous = rendezvous_of(job, settings, max((pod.run for pod in pods), default=0))
    if outlived_its_template(job, [pod for pod in pods if pod.run == rendezvous.run], hash_of(job)):
        rendezvous = rendezvous_of(job, settings, rendezvous.run + 1)
    workers = [(pod, stand(pod)) for pod in sorted(pods, key=lambda pod: pod.index)]
    current = tuple((pod, stands) for pod, stands in workers if pod.run == rendezvous.run)
    stale = tuple((pod, stands) for pod, stands in workers if pod.run != rendezvous.run)
    etcd = tuple(
        (pod, pod_state_of(pod, nodes, rules_of_etcd, now))
        for pod in world.pods
        if pod.component == names.COMPONENT_ETCD
    )
    rendezvous = with_store(
        rendezvous, job.status.rendezvous, [(pod, stands.state is PodState.LOST) for pod, stands in etcd]
    )
    scaling = scale(
        job.replicas,
        {pod.index: (pod, stands.state) for pod, stands in current},
        indices_in_use=_indices_in_use(job, world),
        stranded=frozenset(pod.index for pod, stand in current if stand.state is PodState.STRANDED),
        # Worker 0 hosts the store of c10d.
        keep=frozenset({0} if job.spec.rendezvous.backend is RendezvousBackend.C10D else ()),
    )
    return Classified(
        rendezvous=rendezvous,
        workers=current,
        stale=stale,
        etcd=etcd,
        # Pods of two runs at once would be more than are wanted.
        scaling=dataclasses.replace(scaling, create=()) if stale else scaling,
        growth=growth,
        unknown_end=unknown_end(job, rendezvous, world.rendezvous, [pod for pod, _ in (*workers, *etcd)]),
    )


def _nodes(world: JobState) -> Nodes | None:
    if world.nodes is None:
        return None
    node_counts = world.node_counts if world.node_counts is not None else count_nodes(world.nodes)
    return Nodes(
        by_name=world.nodes,
        watched_since=world.nodes_watched_since,
        heartbeats=world.heartbeats,
        node_counts=node_counts,
    )


def _rules(job: ElasticJob, settings: Settings) -> LossRules:
    return LossRules(
        lost_seconds=settings.node_lost_seconds,
        settle_seconds=settings.node_settle_seconds,
        stuck_seconds=settings.stuck_seconds,
        on_partition=job.spec.rendezvous.on_partition,
        fenced=job.has_plans,
    )


def _has_its_name(job: ElasticJob, pod: Pod) -> bool:
    """Somebody else's pod with copied labels is none of ours, and must not pass for a twin."""
    return pod.index >= 0 and pod.name == names.worker_name(job.name, pod.index)


def _indices_in_use(job: ElasticJob, world: JobState) -> frozenset[int]:
    """Indices whose pod names are held by pods of an earlier job."""
    prefix = names.worker_name(job.name, 0)[:-1]
    others = {
        name.removeprefix(prefix) for kind, name in world.names_in_use if kind == "Pod" and name.startswith(prefix)
    }
    return frozenset(int(index) for index in others if index.isdigit())
