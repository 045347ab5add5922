"""`plan` against a model of the cluster, in random orders of events and with operators that die in the middle of what
they do.

The model plays kubelets, nodes, agents and users. What must hold at every moment is in the invariants; in the end all
troubles are over, and the job must come to rest where its owner wants it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

import orjson
from elasticjob_operator.api import ConditionType, ElasticJob, OnPartition, Status
from elasticjob_operator.planning import (
    Action,
    ClearRun,
    CreateObject,
    CreatePod,
    DeleteObject,
    DeletePod,
    DryRunCreate,
    Plan,
    PublishSpec,
    ReadHeartbeat,
    plan,
)
from elasticjob_operator.policies.failures import classify_failure
from elasticjob_operator.policies.pod_state import STRANDED_SECONDS
from elasticjob_operator.policies.restart_budget import is_counted, latest_round
from elasticjob_operator.resources.pods import template_hash
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import (
    Admission,
    Connectivity,
    ContainerEnd,
    Heartbeat,
    JobState,
    Kind,
    Node,
    NodeHealth,
    OwnedObject,
    Pod,
    PodPhase,
    RendezvousView,
)
from elasticjob_runtime.contract import FailureValue, OutcomeValue, PlanValue, SpecValue
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.operator.builders import NOW, UID, make_failure, make_job, make_outcome, make_plan

MIN, MAX = 1, 5
NODES = ("n0", "n1", "n2")
ENDS: tuple[int | str, ...] = (1, 1, 137, 143, 69, 0, "Evicted", "OutOfcpu")
"""Exit codes, and reasons of pods that failed without one."""
numbers = st.integers(0, MAX - 1)
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"scaling": {"scaleUpDelaySeconds": 5}},
    {"workers": {"allowedReplicas": [1, 2, 4]}},
    {"workers": {"replicaStep": 1}, "restartPolicy": {"windowSeconds": 60}},
    {"restartPolicy": {"rules": [{"exitCodes": [137], "action": "Ignore"}, {"exitCodes": [42], "action": "Fail"}]}},
    {"lifecycle": {"activeDeadlineSeconds": 300, "startupDeadlineSeconds": 60, "cleanPods": "All"}},
    {"lifecycle": {"suspend": True}},
    {"rendezvous": {"onPartition": "Consistent"}},
)


def _other(spec: dict[str, Any]) -> dict[str, Any]:
    return {part: value for part, value in spec.items() if part != "workers"}


def event(**arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Something happens, and the operator looks: or not (None), or dies after so many writes."""

    def decorate(happen: Callable[..., None]) -> Any:
        def happens(self: Cluster, survives: int | None, **values: Any) -> None:
            happen(self, **values)
            if survives is not None:
                self.reconcile(survives)

        happens.__name__ = happen.__name__
        survives: st.SearchStrategy[Any] = st.sampled_from([99, 99, 99, None, 0, 1, 2, 3])
        return rule(survives=survives, **arguments)(happens)  # type: ignore[call-overload]  # its overloads do not take **

    return decorate


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.job: ElasticJob = make_job(replicas=2, min=MIN, max=MAX, max_restarts=4)
        self.pods: dict[str, Pod] = {}
        self.objects: dict[tuple[Kind, str], OwnedObject] = {}
        self.nodes = {name: Node(name=name, health=NodeHealth.READY, since=NOW, seen_at=NOW) for name in NODES}
        self.heartbeats: dict[str, Heartbeat] = {}
        self.connectivity = Connectivity.REACHABLE
        self.spec: SpecValue | None = None
        self.plan: PlanValue | None = None
        self.outcome: OutcomeValue | None = None
        self.admission: Admission | None = None
        self.made = 0
        self.most_restarts = 0
        self.most_round = 0
        self.ended: str = ""
        self.run_id = ""
        """Whose keys are followed."""
        self.failure: FailureValue | None = None

    # The operator

    @property
    def world(self) -> JobState:
        known = self.connectivity is not Connectivity.CONNECTING
        view = RendezvousView(
            connectivity=self.connectivity,
            run_id=self.run_id,
            spec=self.spec if known else None,
            plan=self.plan if known else None,
            outcome=self.outcome if known else None,
            failure=self.failure if known else None,
        )
        return JobState(
            pods=tuple(self.pods.values()),
            objects=self.objects,
            nodes=self.nodes,
            heartbeats=self.heartbeats,
            rendezvous=view,
            admission=self.admission,
        )

    def decide(self) -> Plan:
        return plan(self.job, self.world, Settings(), self.now)

    @initialize(spec=st.sampled_from(SPECS))
    def _admit(self, spec: dict[str, Any]) -> None:
        workers, policy = spec.get("workers", {}), {"maxRestarts": 4, **spec.get("restartPolicy", {})}
        self.job = make_job(
            replicas=2, min=MIN, max=MAX, workers=workers, spec={**_other(spec), "restartPolicy": policy}
        )
        self.reconcile(survives=99)

    def reconcile(self, survives: int) -> None:
        """One round. The operator dies after `survives` writes, the status write being the last."""
        found = self.decide()
        self.follow(found)
        for action in found.actions[:survives]:
            self.apply(action)
        if survives >= len(found.actions):
            self.write(found.status)
        else:
            self.admission = None

    def follow(self, found: Plan) -> None:
        """A new run has no keys yet, and its rounds begin at 1."""
        run_id = found.target.run_id if found.target else ""
        if run_id and self.run_id and run_id != self.run_id:
            self.forget_keys()
            self.most_round = 0
        self.run_id = run_id or self.run_id

    def forget_keys(self) -> None:
        self.spec = self.plan = self.outcome = self.failure = None

    def apply(self, action: Action) -> None:
        match action:
            case DryRunCreate():
                self.admission = Admission(template_hash=action.template_hash, at=self.now)
            case CreatePod():
                self.create(action)
            case DeletePod():
                self.check_counted(action)
                self.check_lost(action)
                self.delete(action)
            case CreateObject():
                body = action.body
                name = body["metadata"]["name"]
                self.objects[action.kind, name] = OwnedObject(
                    kind=action.kind, name=name, uid="o", owner_uid=UID, terminating=False, json=orjson.dumps(body)
                )
            case DeleteObject():
                self.objects.pop((action.kind, action.name), None)
            case ReadHeartbeat():
                last = self.nodes[action.node].since - datetime.timedelta(seconds=45)
                self.heartbeats[action.node] = Heartbeat(read_at=self.now, renewed_at=last, unchanged_since=self.now)
            case PublishSpec():
                if self.connectivity is Connectivity.REACHABLE:
                    self.spec = action.spec
            case ClearRun():
                assert not any(pod.running for pod in self.pods.values()), "took the keys from agents that live"
                self.forget_keys()
            case _:
                pass  # evicting members: agents' business

    def create(self, action: CreatePod) -> None:
        metadata = action.body["metadata"]
        name, labels = metadata["name"], metadata["labels"]
        assert not self.job.status.is_finished, "created a pod for a job that has ended"
        assert not self.job.is_suspended, "created a pod for a job that is to rest"
        assert name not in self.pods, "created a twin"
        self.made += 1
        self.pods[name] = Pod(
            name=name,
            uid=f"uid-{self.made}",
            job_uid=UID,
            component="worker",
            index=int(labels["elasticjob.dev/worker-index"]),
            run=int(labels["elasticjob.dev/run"]),
            template_hash=labels["elasticjob.dev/template-hash"],
            created_at=self.now,
        )
        assert self.holding_places(NodeHealth.NOT_READY) <= self.job.replicas, "more pods than wanted"

    def holding_places(self, *unable: NodeHealth) -> int:
        """How many pods count as workers: one that a kubelet on an `unable` node should have ended by now holds only
        its name."""
        overdue = self.now - datetime.timedelta(seconds=STRANDED_SECONDS)
        return sum(
            pod.deletion_timestamp is None
            or pod.deletion_timestamp > overdue
            or self.nodes[pod.node].health not in unable
            for pod in self.pods.values()
        )

    def check_counted(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod and pod.failed and not self.job.status.is_finished and not pod.terminating:
            failure = classify_failure(pod, self.job.spec.restart_policy.rules)
            latest = latest_round(self.job, self.world.rendezvous, self.now)
            assert is_counted(pod, failure, self.job.status.last_failure, latest), "deleted before it was counted"

    def check_lost(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod and action.force and pod.node and not pod.terminating:
            node = self.nodes[pod.node]
            assert node.health is NodeHealth.SILENT, "forced out from under a kubelet that lives"
            kept = self.job.spec.rendezvous.on_partition is OnPartition.CONSISTENT
            assert node.out_of_service or not kept, "forced out of a partition"

    def delete(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod is None or pod.uid != action.uid:
            return
        if action.force or not pod.node or pod.ended:
            del self.pods[action.name]
        else:
            self.pods[action.name] = dataclasses.replace(
                pod, deletion_timestamp=self.now + datetime.timedelta(seconds=30)
            )

    def write(self, status: Status) -> None:
        old = {each.type: each for each in self.job.status.conditions}
        for condition in status.conditions:
            before = old.get(condition.type)
            if before is not None:
                changed = before.status != condition.status
                expected = self.now.replace(microsecond=0) if changed else before.last_transition_time
                assert condition.last_transition_time == expected
        self.job = self.job.model_copy(update={"status": status})
        assert not (status.is_true(ConditionType.SUSPENDED) and self.pods), "at rest, and holds pods"

    # The world

    def change(self, pod: Pod, **fields: object) -> None:
        self.pods[pod.name] = dataclasses.replace(pod, **fields)  # type: ignore[arg-type]

    def pod(self, number: int) -> Pod | None:
        """Any of those there are."""
        return self.pods[sorted(self.pods)[number % len(self.pods)]] if self.pods else None

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

    def start(self, pod: Pod, node: str) -> None:
        if pod.phase is PodPhase.PENDING and not pod.terminating and self.nodes[node].ready:
            self.change(pod, phase=PodPhase.RUNNING, ready=True, node=node, scheduled_at=self.now)

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

    @event(number=numbers)
    def kubelet_ends_pod(self, number: int) -> None:
        self.end(self.pod(number))

    def end(self, pod: Pod | None) -> None:
        if pod and pod.terminating and self.nodes[pod.node].ready:
            del self.pods[pod.name]

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
        """Perhaps with another template, which may change in the very same update."""
        metadata = self.job.metadata.model_copy(update={"generation": self.job.generation + 1})
        if suspend or self.job.is_suspended:
            template = {"spec": {"containers": [{"name": "trainer", "image": image}]}}
            workers = self.job.spec.workers.model_copy(update={"template": template})
            self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update={"workers": workers})})
        lifecycle = self.job.spec.lifecycle.model_copy(update={"suspend": suspend})
        self.job = self.job.model_copy(
            update={"metadata": metadata, "spec": self.job.spec.model_copy(update={"lifecycle": lifecycle})}
        )

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

    # What always holds

    @invariant()
    def never_above_max_nor_two_of_an_index(self) -> None:
        # A node may be ready again before its kubelet has ended a pod that was replaced meanwhile.
        assert self.holding_places(*NodeHealth) <= MAX
        assert len({pod.index for pod in self.pods.values()}) == len(self.pods)

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
            if any(each.type == type_ and each.status == "True" for each in self.job.status.conditions)
        )
        assert ended in ("Succeeded", "Failed", "")
        assert not self.ended or ended == self.ended, f"{self.ended} became {ended or 'alive'}"
        self.ended = ended

    @invariant()
    def deciding_twice_is_the_same(self) -> None:
        assert self.decide() == self.decide()

    # All troubles end

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

    def at_rest(self) -> None:
        found = self.decide()
        assert found.actions == ()
        if self.job.status.is_finished:
            assert not any(pod.running for pod in self.pods.values()), "an ended job holds resources"
            assert not self.objects, "an ended job keeps its etcd"
            return
        if self.job.is_suspended:
            assert not self.pods
            assert self.job.status.is_true(ConditionType.SUSPENDED), found
            assert not self.objects, "a job at rest keeps its etcd"
            return
        assert len(self.pods) == self.job.replicas
        assert {pod.template_hash for pod in self.pods.values()} == {template_hash(self.job)}, (
            "workers of another template"
        )
        assert all(pod.running for pod in self.pods.values())
        assert self.spec is not None
        assert sorted(self.spec.members) == sorted(self.pods)
        assert self.spec.draining == []
        assert self.spec.generation == self.job.generation


TestRandomOrders = Cluster.TestCase
TestRandomOrders.settings = settings(max_examples=80, stateful_step_count=40)
