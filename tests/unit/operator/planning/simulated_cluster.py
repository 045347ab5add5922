"""A model of the cluster for random orders of events: the operator's part, with what each write must respect."""

from __future__ import annotations

import dataclasses
import datetime

import orjson
from elasticjob_api import ConditionType, ElasticJob, OnPartition, Status
from elasticjob_operator.node_state import Heartbeat, Node, NodeHealth
from elasticjob_operator.planning import (
    Action,
    ClearRun,
    CreateObject,
    CreatePod,
    DeleteObject,
    DeletePod,
    DryRunCreate,
    PatchPod,
    Plan,
    PublishSpec,
    ReadHeartbeat,
    plan,
)
from elasticjob_operator.policies.failures import classify_failure
from elasticjob_operator.policies.restart_budget import is_counted, latest_round
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.settings import NetworkPolicySettings, Settings
from elasticjob_operator.state import (
    Admission,
    Connectivity,
    JobState,
    Kind,
    OwnedObject,
    Pod,
    PodPhase,
    RendezvousView,
)
from elasticjob_runtime.contract import FailureValue, OutcomeValue, PlanValue, SpecValue

from tests.unit.operator.builders import NOW, UID, make_job

MIN, MAX = 1, 5
NODES = ("n0", "n1", "n2")
SETTINGS = Settings(network_policies=NetworkPolicySettings(operator=({"podSelector": {}},), metrics_port=9100))
POLICIES = {(Kind.NETWORK_POLICY, "digits-worker"), (Kind.NETWORK_POLICY, "digits-etcd")}


class SimulatedCluster:
    """Pods, nodes, etcd and one job. `reconcile` decides with `plan` and applies the actions."""

    def __init__(self) -> None:
        super().__init__()  # the next class in line is hypothesis' state machine
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
        """The run whose keys are followed."""
        self.failure: FailureValue | None = None

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
        return plan(self.job, self.world, SETTINGS, self.now)

    def reconcile(self, survives: int) -> None:
        """One reconciliation. The operator dies after `survives` writes, the status write being the last.

        Writes are concurrent: pods may be created before anything else of the same plan.
        """
        self.now += datetime.timedelta(microseconds=1)  # no two pods of an index have the same name
        found = self.decide()
        self.follow(found)
        for action in sorted(found.actions, key=lambda item: not isinstance(item, CreatePod))[:survives]:
            self.apply(action)
        if survives >= len(found.actions):
            self.write(found.status)
        else:
            self.admission = None

    def follow(self, found: Plan) -> None:
        """A new run has no keys yet, and its rounds start at 1."""
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
                self.create_object(action)
            case DeleteObject():
                self.objects.pop((action.kind, action.name), None)
            case ReadHeartbeat():
                last = self.nodes[action.node].since - datetime.timedelta(seconds=45)
                self.heartbeats[action.node] = Heartbeat(read_at=self.now, renewed_at=last, unchanged_since=self.now)
            case PatchPod():
                self.pods[action.name] = dataclasses.replace(self.pods[action.name], in_dns=False)
            case PublishSpec():
                self.spec = action.spec if self.connectivity is Connectivity.REACHABLE else self.spec
            case ClearRun():
                assert not any(pod.running for pod in self.pods.values()), "deleted the keys of running agents"
                self.forget_keys()
            case _:
                pass  # evicting a member concerns only agents

    def create_object(self, action: CreateObject) -> None:
        name = action.body["metadata"]["name"]
        self.objects[action.kind, name] = OwnedObject(
            kind=action.kind, name=name, uid="o", owner_uid=UID, terminating=False, json=orjson.dumps(action.body)
        )

    def create(self, action: CreatePod) -> None:
        metadata = action.body["metadata"]
        name, labels = metadata["name"], metadata["labels"]
        assert not self.job.status.is_finished, "created a pod for a job that has ended"
        assert not self.job.is_suspended, "created a pod for a suspended job"
        assert name not in self.pods, "created a pod twice"
        assert self.objects.keys() >= POLICIES, "created a pod that is open to all"
        assert int(labels["elasticjob.dev/worker-index"]) not in self.indices, "two pods of one index"
        self.made += 1
        self.pods[name] = Pod(
            name=name,
            uid=f"uid-{self.made}",
            job_uid=UID,
            component="worker",
            index=int(labels["elasticjob.dev/worker-index"]),
            run=int(labels["elasticjob.dev/run"]),
            template_hash=labels["elasticjob.dev/template-hash"],
            in_dns=True,
            created_at=self.now,
        )
        assert len(self.indices) <= self.job.replicas, "more pods than wanted"

    @property
    def indices(self) -> set[int]:
        """Of the pods that are not being deleted, nor lost with their node."""
        silent = {name for name, node in self.nodes.items() if node.health is NodeHealth.SILENT}
        return {pod.index for pod in self.pods.values() if not pod.terminating and pod.node not in silent}

    def check_counted(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod and pod.failed and not self.job.status.is_finished and not pod.terminating:
            failure = classify_failure(pod, self.job.spec.failure_policy.rules)
            latest = latest_round(self.job, self.world.rendezvous, self.now)
            assert is_counted(pod, failure, self.job.status.last_failure, latest), "deleted before it was counted"

    def check_lost(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod and action.force:
            node = self.nodes[pod.node]
            assert node.health is NodeHealth.SILENT, "force-deleted under a running kubelet"
            kept = self.job.spec.rendezvous.on_partition is OnPartition.CONSISTENT
            assert node.out_of_service or not kept, "force-deleted in a partition"

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
        old = {item.type: item for item in self.job.status.conditions}
        for condition in status.conditions:
            before = old.get(condition.type)
            if before is not None:
                changed = before.status != condition.status
                expected = self.now.replace(microsecond=0) if changed else before.last_transition_time
                assert condition.last_transition_time == expected
        self.job = self.job.model_copy(update={"status": status})
        assert not (status.is_true(ConditionType.SUSPENDED) and self.pods), "suspended, but with pods"

    def change(self, pod: Pod, **fields: object) -> None:
        self.pods[pod.name] = dataclasses.replace(pod, **fields)  # type: ignore[arg-type]

    def pod(self, number: int) -> Pod | None:
        """One of the existing pods."""
        return self.pods[sorted(self.pods)[number % len(self.pods)]] if self.pods else None

    def start(self, pod: Pod, node: str) -> None:
        if pod.phase is PodPhase.PENDING and not pod.terminating and self.nodes[node].ready:
            self.change(pod, phase=PodPhase.RUNNING, ready=True, node=node, scheduled_at=self.now)

    def end(self, pod: Pod | None) -> None:
        if pod and pod.terminating and self.nodes[pod.node].ready:
            del self.pods[pod.name]

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
            assert not self.objects, "a suspended job keeps its etcd"
            return
        assert self.objects.keys() >= POLICIES, "lacks a network policy"
        assert len(self.pods) == len(self.indices) == self.job.replicas
        assert {pod.template_hash for pod in self.pods.values()} == {hash_of(self.job)}, "workers of another template"
        assert all(pod.running for pod in self.pods.values())
        assert self.spec is not None
        assert self.spec.draining == []
        assert self.spec.generation == self.job.generation
