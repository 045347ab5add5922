"""`plan` against a model of the cluster, with events in random order and operators that die between two writes.

The model plays kubelets, nodes, agents and users. The invariants must hold at every moment. In the end all faults are
over, and the job must settle where its owner wants it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

from elasticjob_operator.node_state import Node, NodeHealth
from elasticjob_operator.planning import DeletePod
from elasticjob_operator.state import Connectivity, ContainerEnd, Kind, PodPhase
from elasticjob_runtime.contract import OutcomeValue
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.operator.builders import NOW, make_failure, make_job, make_outcome, make_plan
from tests.unit.operator.planning.simulated_cluster import MAX, MIN, NODES, POLICIES, SimulatedCluster

ENDS: tuple[int | str, ...] = (1, 1, 137, 143, 69, 0, "Evicted", "OutOfcpu")
"""Exit codes, and reasons of pods that failed without one."""
numbers = st.integers(0, MAX - 1)
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"scaling": {"scaleUpDelaySeconds": 5}},
    {"workers": {"allowedReplicas": [1, 2, 4]}},
    {"failurePolicy": {"windowSeconds": 60}},
    {"failurePolicy": {"rules": [{"exitCodes": [137], "action": "Ignore"}, {"exitCodes": [42], "action": "Fail"}]}},
    {"lifecycle": {"activeDeadlineSeconds": 300, "startupDeadlineSeconds": 60, "cleanPods": "All"}},
    {"suspend": True},
    {"rendezvous": {"onPartition": "Consistent"}},
)


def _other(spec: dict[str, Any]) -> dict[str, Any]:
    return {part: value for part, value in spec.items() if part != "workers"}


def event(**arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """An event, after which the operator reconciles, does not (None), or dies after `survives` writes."""

    def decorate(happen: Callable[..., None]) -> Any:
        def happens(self: Cluster, survives: int | None, **values: Any) -> None:
            happen(self, **values)
            if survives is not None:
                self.reconcile(survives)

        happens.__name__ = happen.__name__
        survives: st.SearchStrategy[Any] = st.sampled_from([99, 99, 99, None, 0, 1, 2, 3])
        return rule(survives=survives, **arguments)(happens)  # type: ignore[call-overload]  # its overloads do not take **

    return decorate


class Cluster(SimulatedCluster, RuleBasedStateMachine):
    @initialize(spec=st.sampled_from(SPECS))
    def _admit(self, spec: dict[str, Any]) -> None:
        workers, policy = spec.get("workers", {}), {"maxRestarts": 4, **spec.get("failurePolicy", {})}
        self.job = make_job(
            replicas=2, min=MIN, max=MAX, workers=workers, spec={**_other(spec), "failurePolicy": policy}
        )
        self.reconcile(survives=99)

    # Events

    @event(seconds=st.sampled_from([0.3, 1, 4, 11, 70, 400]))
    def time_passes(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)
        for number, pod in enumerate(list(self.pods.values())):
            self.start(pod, NODES[number % len(NODES)])

    @event(nodes=st.permutations(NODES), all_=st.booleans())
    def kubelets_start_pods(self, nodes: list[str], all_: bool) -> None:
        for number, pod in enumerate(list(self.pods.values())):
            if all_ or number == 0:
                self.start(pod, nodes[number % len(nodes)])

    @event(number=numbers, how=st.sampled_from(ENDS))
    def pod_ends(self, number: int, how: int | str) -> None:
        pod = self.pod(number)
        if pod is None or pod.ended or pod.terminating:
            return
        if isinstance(how, str):
            self.change(pod, phase=PodPhase.FAILED, ready=False, reason=how)
        elif pod.running and (how != 0 or self.made > 4):
            phase = PodPhase.FAILED if how else PodPhase.SUCCEEDED
            end = ContainerEnd(exit_code=how, reason="Error", started_at=pod.scheduled_at, finished_at=self.now)
            self.change(pod, phase=phase, ready=False, end=end)

    @event(number=numbers)
    def user_deletes_pod(self, number: int) -> None:
        pod = self.pod(number)
        if pod and not pod.terminating:
            self.delete(DeletePod(name=pod.name, uid=pod.uid, reason="by hand", force=pod.failed))

    @event(key=st.sampled_from(sorted(POLICIES)))
    def user_deletes_a_network_policy(self, key: tuple[Kind, str]) -> None:
        self.objects.pop(key, None)

    @event(number=numbers)
    def request_of_an_earlier_leader_arrives_late(self, number: int) -> None:
        if (pod := self.pod(number)) and not pod.terminating:
            self.made += 1
            name, uid = f"{pod.name}-{self.made}", f"uid-{self.made}"
            self.pods[name] = dataclasses.replace(
                pod, name=name, uid=uid, created_at=self.now, phase=PodPhase.PENDING, ready=False, node="", end=None
            )

    @event(number=numbers)
    def kubelet_ends_pod(self, number: int) -> None:
        self.end(self.pod(number))

    @event(name=st.sampled_from(NODES), health=st.sampled_from(NodeHealth), marked=st.booleans())
    def node_changes(self, name: str, health: NodeHealth, marked: bool) -> None:
        out = marked and health is NodeHealth.SILENT
        self.nodes[name] = Node(name=name, health=health, since=self.now, seen_at=self.now, out_of_service=out)

    @event(replicas=st.integers(MIN, MAX))
    def user_scales(self, replicas: int) -> None:
        metadata = self.job.metadata.model_copy(update={"generation": self.job.generation + 1})
        workers = self.job.spec.workers.model_copy(update={"replicas": replicas})
        self.job = self.job.model_copy(
            update={"metadata": metadata, "spec": self.job.spec.model_copy(update={"workers": workers})}
        )

    @event(suspend=st.booleans(), image=st.sampled_from(["trainer:1", "trainer:1", "trainer:2"]))
    def user_suspends_or_resumes(self, suspend: bool, image: str) -> None:
        """Possibly with another template in the same update."""
        metadata = self.job.metadata.model_copy(update={"generation": self.job.generation + 1})
        if suspend or self.job.is_suspended:
            template = {"spec": {"containers": [{"name": "trainer", "image": image}]}}
            workers = self.job.spec.workers.model_copy(update={"template": template})
            self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update={"workers": workers})})
        spec = self.job.spec.model_copy(update={"suspend": suspend})
        self.job = self.job.model_copy(update={"metadata": metadata, "spec": spec})

    @event(
        connectivity=st.sampled_from(
            [Connectivity.REACHABLE, Connectivity.REACHABLE, Connectivity.UNREACHABLE, Connectivity.CONNECTING]
        ),
        empty=st.booleans(),
    )
    def etcd_comes_and_goes(self, connectivity: Connectivity, empty: bool) -> None:
        self.connectivity = connectivity
        if empty:
            self.forget_keys()

    @event(index=numbers, code=st.sampled_from([1, 42, -9]))
    def agents_report_a_failure(self, index: int, code: int) -> None:
        if self.plan is not None:
            failure = make_failure(index, round_number=self.plan.round, at=(self.now - NOW).total_seconds())
            self.failure = dataclasses.replace(failure, exit_code=code)

    @event(restart=st.booleans())
    def agents_plan(self, restart: bool) -> None:
        if not any(pod.running for pod in self.pods.values()):
            return
        round_number = max(self.most_round, self.plan.round if self.plan else 0) + 1
        count = (self.plan.restart_count if self.plan else 0) + restart
        self.plan = make_plan(round_number, restart_count=count)

    @precondition(lambda self: self.made > 4)
    @event(outcome=st.sampled_from([make_outcome(), make_outcome("failed", "MaxRestartsExceeded")]))
    def agents_end(self, outcome: OutcomeValue) -> None:
        if any(pod.running for pod in self.pods.values()):
            self.outcome = self.outcome or outcome

    # Invariants

    @invariant()
    def never_above_max(self) -> None:
        assert len(self.indices) <= MAX

    @invariant()
    def a_run_never_meets_another(self) -> None:
        assert len({pod.run for pod in self.pods.values()}) <= 1

    @invariant()
    def what_is_counted_adds_up(self) -> None:
        restarts = self.job.status.restarts
        assert sum(restarts.by_cause.values()) == restarts.total
        assert (restarts.window or 0) <= restarts.total

    @invariant()
    def what_is_counted_never_shrinks(self) -> None:
        status = self.job.status
        assert status.restarts.total >= self.most_restarts
        assert status.round >= self.most_round or status.round == 0
        self.most_restarts, self.most_round = status.restarts.total, status.round

    @invariant()
    def terminal_is_terminal(self) -> None:
        ended = ",".join(
            type_
            for type_ in ("Succeeded", "Failed")
            if any(condition.type == type_ and condition.status == "True" for condition in self.job.status.conditions)
        )
        assert ended in ("Succeeded", "Failed", "")
        assert not self.ended or ended == self.ended, f"{self.ended} became {ended or 'alive'}"
        self.ended = ended

    @invariant()
    def deciding_twice_is_the_same(self) -> None:
        assert self.decide() == self.decide()

    # The end

    def teardown(self) -> None:
        self.nodes = {
            name: Node(name=name, health=NodeHealth.READY, since=self.now, seen_at=self.now) for name in NODES
        }
        self.connectivity = Connectivity.REACHABLE
        for _ in range(90):
            for pod in list(self.pods.values()):
                self.start(pod, NODES[0])
                self.end(pod)
            found = self.decide()
            if not found.actions and found.status == self.job.status:
                if found.requeue_at is None:
                    break
                self.now = max(self.now, found.requeue_at)
            self.reconcile(survives=99)
        self.at_rest()
        super().teardown()


TestRandomOrders = Cluster.TestCase
TestRandomOrders.settings = settings(max_examples=40, stateful_step_count=40)
