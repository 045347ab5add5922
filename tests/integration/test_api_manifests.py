"""Good and bad manifests on a real API server: a wrong one is refused with its field, its value and what to do about it.

The table is what a user meets: `kubectl apply`, `kubectl scale`, `kubectl explain`, `kubectl get`.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from elasticjob_operator.api import (
    API_VERSION,
    ConditionType,
    ElasticJob,
    FailingNode,
    Failure,
    Progress,
    Reason,
    RendezvousStatus,
    Restarts,
    Status,
    latest_true,
    set_condition,
)
from elasticjob_operator.api.template import CONTAINER_FIELDS, ENV_FIELDS, POD_SPEC_FIELDS

from tests.cluster import ClusterError, ControlPlane

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "elasticjobs.elasticjob.dev.yaml"
EXAMPLES = sorted(ROOT.glob("examples/**/elasticjob*.yaml"))
NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, tzinfo=datetime.timezone.utc)

Manifest = dict[str, Any]

BASE: Manifest = {
    "apiVersion": API_VERSION,
    "kind": "ElasticJob",
    "metadata": {"name": "digits"},
    "spec": {
        "workers": {
            "replicas": 4,
            "template": {
                "metadata": {"labels": {"team": "vision"}},
                "spec": {
                    "nodeSelector": {"disk": "ssd"},
                    "containers": [
                        {
                            "name": "trainer",
                            "image": "train:1",
                            "command": ["torchrun", "train.py"],
                            "env": [{"name": "LR", "value": "0.1"}],
                        },
                        {"name": "sidecar", "image": "sidecar:1", "env": [{"name": "RANK", "value": "mine"}]},
                    ],
                },
            },
        }
    },
}

WORKERS = "spec.workers"
POD = "spec.workers.template.spec"
TRAINER = f"{POD}.containers.0"


GONE = object()


class Case(NamedTuple):
    """What is written into BASE, by path (GONE takes the field away), and what kubectl must say."""

    changes: dict[str, Any]
    words: tuple[str, ...] = ()


def changed(changes: dict[str, Any], manifest: Manifest = BASE) -> Manifest:
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
        target: Any = result
        for parent in parents:
            target = target.setdefault(parent, {}) if isinstance(target, dict) else target[parent]
        if value is not GONE and isinstance(target, list) and last == len(target):
            target.append(value)
        elif value is GONE:
            del target[last]
        else:
            target[last] = value
    return result


class Cluster:
    """kubectl in a namespace of its own."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._control_plane = control_plane
        self.namespace = namespace

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self._control_plane.kubectl("--namespace", self.namespace, *words, stdin=stdin)

    def apply(self, manifest: Manifest, *flags: str) -> ElasticJob:
        words = ("apply", "--output=json", *flags, "--filename=-")
        return ElasticJob.parse(json.loads(self.kubectl(*words, stdin=json.dumps(manifest))))

    def refusal(self, manifest: Manifest) -> str:
        with pytest.raises(ClusterError) as caught:
            self.apply(manifest, "--dry-run=server")
        return str(caught.value)

    def get(self, name: str = "digits") -> Manifest:
        body: Manifest = json.loads(self.kubectl("get", "elasticjob", name, "--output=json"))
        return body


@pytest.fixture(scope="module")
def api(control_plane_server: ControlPlane) -> ControlPlane:
    control_plane_server.kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(CRD))
    control_plane_server.kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{CRD.stem}")
    return control_plane_server


@contextlib.contextmanager
def namespace(api: ControlPlane) -> Iterator[Cluster]:
    name = f"api-{uuid.uuid4().hex[:8]}"
    api.kubectl("create", "namespace", name)
    yield Cluster(api, name)
    api.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def cluster(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace of the test's own."""
    with namespace(api) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def empty(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace for what is only tried."""
    with namespace(api) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def running(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace in which the job exists already, for changes that are only tried."""
    with namespace(api) as cluster:
        cluster.apply(BASE)
        yield cluster


@pytest.fixture(scope="module")
def resting(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace in which the job exists, suspended."""
    with namespace(api) as cluster:
        cluster.apply(changed({"spec.lifecycle.suspend": True}))
        yield cluster


GOOD = {
    "the least": Case({f"{WORKERS}.replicas": GONE}),
    "elastic": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8}),
    "bounds at the size": Case({f"{WORKERS}.minReplicas": 4, f"{WORKERS}.maxReplicas": 4}),
    "processes as a number": Case({f"{WORKERS}.procsPerWorker": 8}),
    "processes for each GPU": Case({f"{WORKERS}.procsPerWorker": "gpu"}),
    "a container of choice": Case({f"{WORKERS}.container": "trainer"}),
    "restartPolicy Never": Case({f"{POD}.restartPolicy": "Never"}),
    "pod fields that nobody here knows": Case({f"{POD}.aFieldOfTheFuture": {"deep": [1]}}),
    "a volume that the template mounts": Case({f"{POD}.volumes": [{"name": "data", "emptyDir": {}}]}),
    "nulls as generators write them": Case(
        {"spec.workers.template.metadata.creationTimestamp": None, f"{TRAINER}.env": None, "spec.checkpoint": None}
    ),
    "an etcd of one's own": Case({"spec.rendezvous.endpoint": "etcd.example.com:2379"}),
    "an etcd at an IPv6 address": Case({"spec.rendezvous.endpoint": "[fd00::1]:2379"}),
    "a managed etcd with resources": Case(
        {"spec.rendezvous.etcd": {"image": "etcd:3.6", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}}
    ),
    "checkpoints in a claim": Case({"spec.checkpoint.volume.persistentVolumeClaim.claimName": "checkpoints"}),
    "checkpoints where the template mounts them": Case({"spec.checkpoint.directory": "/data/run"}),
    "c10d": Case({"spec.rendezvous.backend": "c10d"}),
    "etcd-v2": Case({"spec.rendezvous": {"backend": "etcd-v2", "endpoint": "etcd:2379"}}),
    "allowed sizes": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [2, 4, 8]}),
    "sizes by a step": Case({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 9, f"{WORKERS}.replicaStep": 2}),
    "an autoscaler": Case({f"{WORKERS}.maxReplicas": 8, "spec.scaling.metrics": [{"type": "Resource"}]}),
    "rules and waits": Case(
        {
            "spec.restartPolicy": {
                "maxRestarts": 100,
                "windowSeconds": 3600,
                "rules": [{"exitCodes": [42, 143], "action": "Fail"}, {"reasons": ["OutOfMemory"], "action": "Ignore"}],
                "backoff": {"initialSeconds": 0, "maxSeconds": 0},
            }
        }
    ),
    "no restarts": Case({"spec.restartPolicy.maxRestarts": 0}),
    "all pods cleaned": Case({"spec.lifecycle.cleanPods": "All"}),
    "suspended from the start": Case({"spec.lifecycle.suspend": True}),
    "all deadlines": Case(
        {
            "spec.lifecycle.startupDeadlineSeconds": 60,
            "spec.lifecycle.activeDeadlineSeconds": 60,
            "spec.lifecycle.ttlSecondsAfterFinished": 0,
            "spec.lifecycle.gracefulShutdownSeconds": 0,
        }
    ),
    "another manager": Case({"spec.lifecycle.managedBy": "kueue.x-k8s.io/multikueue"}),
    "the longest name": Case({"metadata.name": "a" * 47}),
}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD.keys())
def test_good_manifest_is_taken(empty: Cluster, case: Case) -> None:
    empty.apply(changed(case.changes), "--dry-run=server")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_example_is_taken(empty: Cluster, example: Path) -> None:
    empty.kubectl("apply", "--dry-run=server", "--filename", str(example))


BAD = {
    "too few workers": Case({f"{WORKERS}.replicas": 0}, ("spec.workers.replicas: Invalid value: 0", "greater than or equal to 1")),
    "too many workers": Case({f"{WORKERS}.replicas": 10_001}, ("spec.workers.replicas", "less than or equal to 10000")),
    "workers as text": Case({f"{WORKERS}.replicas": "4"}, ("spec.workers.replicas", "must be of type integer")),
    "below the least": Case({f"{WORKERS}.minReplicas": 5}, ("replicas (4) is below minReplicas (5): raise replicas or lower minReplicas",)),
    "above the most": Case({f"{WORKERS}.maxReplicas": 3}, ("replicas (4) is above maxReplicas (3): lower replicas or raise maxReplicas",)),
    "bounds crossed": Case(
        {f"{WORKERS}.minReplicas": 5, f"{WORKERS}.maxReplicas": 3},
        ("spec.workers.minReplicas: Invalid value: minReplicas (5) is above maxReplicas (3): lower minReplicas or raise maxReplicas",),
    ),
    "processes unknown": Case(
        {f"{WORKERS}.procsPerWorker": "many"}, ("procsPerWorker is many: write auto, cpu, gpu or a number from 1 to 1024",)
    ),
    "processes quoted": Case({f"{WORKERS}.procsPerWorker": "2"}, ("procsPerWorker is 2", "without quotes")),
    "no processes": Case({f"{WORKERS}.procsPerWorker": 0}, ("procsPerWorker is 0", "from 1 to 1024")),
    "no template": Case({f"{WORKERS}.template": GONE}, ("spec.workers.template: Required value",)),
    "no containers": Case({f"{POD}.containers": []}, ("spec.workers.template.spec.containers", "at least 1 items")),
    "a container without a name": Case({f"{TRAINER}.name": GONE}, ("spec.workers.template.spec.containers[0].name: Required value",)),
    "a container that is not there": Case(
        {f"{WORKERS}.container": "trainr"},
        ('spec.workers.container: Invalid value: the template has no container trainr, it has ["trainer", "sidecar"]: name one of these',),
    ),
    "restartPolicy of a Deployment": Case(
        {f"{POD}.restartPolicy": "Always"},
        ("spec.workers.template.spec.restartPolicy", "restartPolicy Always does not work here: leave it out"),
    ),
    "reserved names in env": Case(
        {f"{TRAINER}.env.1": {"name": "MASTER_ADDR", "value": "x"}, f"{TRAINER}.env.2": {"name": "PET_NNODES", "value": "2"}},
        ('env of container trainer sets ["MASTER_ADDR", "PET_NNODES"], which ElasticJob sets itself: remove it',),
    ),
    "reserved names in the container of choice": Case({f"{WORKERS}.container": "sidecar"}, ('env of container sidecar sets ["RANK"]',)),
    "our own labels": Case(
        {"spec.workers.template.metadata.labels": {"elasticjob.dev/run": "1"}},
        ('labels ["elasticjob.dev/run"] belong to ElasticJob: remove them from the template',),
    ),
    "a name too long for its pods": Case(
        {"metadata.name": "a" * 48}, ("metadata.name has 48 characters: shorten it to 47, because names made from it must fit into 63",)
    ),
    "a name that is no Service's": Case({"metadata.name": "7b.chat"}, ("metadata.name 7b.chat cannot be part of a Service's name",)),
    "a rendezvous that is not there": Case({"spec.rendezvous.backend": "zeus"}, ('supported values: "etcd-v3", "etcd-v2", "c10d"',)),
    "c10d with an endpoint": Case(
        {"spec.rendezvous": {"backend": "c10d", "endpoint": "etcd:2379"}},
        ("spec.rendezvous.endpoint", "endpoint etcd:2379 is not used by backend c10d, whose workers meet at worker 0: remove it"),
    ),
    "c10d with an etcd": Case({"spec.rendezvous": {"backend": "c10d", "etcd": {}}}, ("but backend is c10d: remove it",)),
    "etcd-v2 without an endpoint": Case(
        {"spec.rendezvous.backend": "etcd-v2"}, ("backend etcd-v2 needs an endpoint: host:port of an etcd up to 3.5 with --enable-v2",)
    ),
    "an endpoint with a scheme": Case(
        {"spec.rendezvous.endpoint": "http://etcd:2379"}, ("endpoint http://etcd:2379 is not host:port: write it without a scheme",)
    ),
    "an endpoint without a port": Case({"spec.rendezvous.endpoint": "etcd"}, ("endpoint etcd is not host:port",)),
    "two etcds": Case(
        {"spec.rendezvous.endpoint": "etcd:2379", "spec.rendezvous.etcd": {}}, ("endpoint names one that you run: remove either",)
    ),
    "no quantity": Case(
        {"spec.rendezvous.etcd.resources.limits": {"cpu": "lots"}}, ("lots is not a quantity: write one such as 500m, 2 or 1Gi",)
    ),
    "a relative directory": Case({"spec.checkpoint.directory": "out"}, ("directory out is not an absolute path below /",)),
    "checkpoints over everything": Case({"spec.checkpoint.directory": "/"}, ("directory / is not an absolute path below /",)),
    "no kind of volume": Case({"spec.checkpoint.volume": {}}, ("write exactly one kind of volume",)),
    "two kinds of volume": Case({"spec.checkpoint.volume": {"emptyDir": {}, "nfs": {}}}, ("write exactly one kind of volume",)),
    "a claim without its name": Case(
        {"spec.checkpoint.volume": {"persistentVolumeClaim": {}}}, ("spec.checkpoint.volume.persistentVolumeClaim.claimName: Required",)
    ),
    "restarts below none": Case({"spec.restartPolicy.maxRestarts": -1}, ("spec.restartPolicy.maxRestarts", "greater than or equal to 0")),
    "cleaning that is not there": Case({"spec.lifecycle.cleanPods": "Some"}, ('supported values: "Running", "All", "None"',)),
    "a typing error": Case({f"{WORKERS}.replica": 4}, ('unknown field "spec.workers.replica"',)),
    "a field that comes later": Case({"spec.inject": "auto"}, ('unknown field "spec.inject"',)),
    "no time at all": Case(
        {"spec.lifecycle.activeDeadlineSeconds": 0}, ("spec.lifecycle.activeDeadlineSeconds", "greater than or equal to 1")
    ),
    "a deadline that another one forestalls": Case(
        {"spec.lifecycle.startupDeadlineSeconds": 90, "spec.lifecycle.activeDeadlineSeconds": 60},
        (
            "spec.lifecycle.startupDeadlineSeconds: Invalid value",
            "startupDeadlineSeconds (90) is above activeDeadlineSeconds (60), which ends the job before: lower it or leave it out",
        ),
    ),
    "sizes said twice": Case(
        {f"{WORKERS}.allowedReplicas": [4], f"{WORKERS}.replicaStep": 2},
        ("allowedReplicas and replicaStep both say which sizes are allowed: remove either",),
    ),
    "a size out of bounds": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.allowedReplicas": [2, 8]},
        ("allowedReplicas [2, 8] are not all from minReplicas to maxReplicas (2 to 4): change either; both bounds default to replicas",),
    ),
    "below all sizes": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8, f"{WORKERS}.allowedReplicas": [8]},
        ("replicas (4) is below all of allowedReplicas [8]: raise replicas, or allow a smaller size",),
    ),
    "a step that leaves no least size": Case(
        {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.replicaStep": 4},
        ("minReplicas (2; default: replicas) is not a multiple of replicaStep (4): change either",),
    ),
    "metrics without room": Case(
        {"spec.scaling.metrics": [{"type": "Resource"}]}, ("scaling.metrics need room to scale: set workers.maxReplicas",)
    ),
    "a rule that matches nothing": Case(
        {"spec.restartPolicy.rules": [{"action": "Fail"}]},
        ("spec.restartPolicy.rules[0]", "a rule without exitCodes and reasons matches nothing: give at least one of either"),
    ),
    "a rule for what is no exit code": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [0], "action": "Fail"}]}, ("spec.restartPolicy.rules[0].exitCodes[0]", "or equal to 1")
    ),
    "a rule that does what is not there": Case(
        {"spec.restartPolicy.rules": [{"exitCodes": [1], "action": "Retry"}]}, ('supported values: "Restart", "Ignore", "Fail"',)
    ),
    "waits crossed": Case(
        {"spec.restartPolicy.backoff": {"initialSeconds": 9, "maxSeconds": 3}},
        ("initialSeconds (9) is above maxSeconds (3): lower initialSeconds or raise maxSeconds",),
    ),
    "more restarts than a window remembers": Case(
        {"spec.restartPolicy": {"maxRestarts": 101, "windowSeconds": 60}},
        ("maxRestarts (101) is above 100, the most within windowSeconds", "lower maxRestarts, or leave windowSeconds out"),
    ),
    "a manager without a domain": Case(
        {"spec.lifecycle.managedBy": "kueue"}, ("managedBy kueue is not a domain, a slash and a name: write one such as kueue.x-k8s.io/",)
    ),
    "no spec": Case({"spec": GONE}, ("spec: Required value",)),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_manifest_is_refused_with_field_value_and_remedy(empty: Cluster, case: Case) -> None:
    refusal = empty.refusal(changed(case.changes))
    for words in case.words:
        assert words in refusal


FORBIDDEN = "cannot be changed once the job exists: delete the job and apply it again, or create one under a new name"
FIXED = "cannot be changed while the job runs: set lifecycle.suspend to true first, then change it and set suspend to false"
TEMPLATE_FORBIDDEN = (f"spec.workers.template: Forbidden: template {FIXED}",)

CHANGES = {
    "size": Case({f"{WORKERS}.replicas": 6}),
    "bounds": Case({f"{WORKERS}.minReplicas": 1, f"{WORKERS}.maxReplicas": 9}),
    "restarts": Case({"spec.restartPolicy.maxRestarts": 3}),
    "cleaning": Case({"spec.lifecycle.cleanPods": "None"}),
    "labels of the job": Case({"metadata.labels": {"a": "b"}}),
    "image": Case({f"{TRAINER}.image": "train:2"}, TEMPLATE_FORBIDDEN),
    "one argument": Case({f"{TRAINER}.command": ["torchrun", "other.py"]}, TEMPLATE_FORBIDDEN),
    "value of a variable": Case({f"{TRAINER}.env.0.value": "0.2"}, TEMPLATE_FORBIDDEN),
    "source of a variable": Case(
        {f"{TRAINER}.env.0": {"name": "LR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}}, TEMPLATE_FORBIDDEN
    ),
    "a further variable": Case({f"{TRAINER}.env.1": {"name": "SEED", "value": "1"}}, TEMPLATE_FORBIDDEN),
    "a value deep inside": Case({f"{POD}.nodeSelector": {"disk": "hdd"}}, TEMPLATE_FORBIDDEN),
    "a key deep inside": Case({f"{POD}.nodeSelector": {"zone": "ssd"}}, TEMPLATE_FORBIDDEN),
    "one field for another": Case({f"{POD}.nodeSelector": GONE, f"{POD}.tolerations": [{"operator": "Exists"}]}, TEMPLATE_FORBIDDEN),
    "a further field": Case({f"{POD}.priorityClassName": "high"}, TEMPLATE_FORBIDDEN),
    "fewer containers": Case({f"{POD}.containers.1": GONE}, TEMPLATE_FORBIDDEN),
    "labels of the pods": Case({"spec.workers.template.metadata.labels": {"team": "speech"}}, TEMPLATE_FORBIDDEN),
    "annotations of the pods": Case({"spec.workers.template.metadata.annotations": {"a": "b"}}, TEMPLATE_FORBIDDEN),
    "container": Case({f"{WORKERS}.container": "trainer"}, (f"spec.workers.container: Forbidden: container {FIXED}",)),
    "processes": Case({f"{WORKERS}.procsPerWorker": 2}, (f"spec.workers.procsPerWorker: Forbidden: procsPerWorker {FIXED}",)),
    "checkpoints": Case({"spec.checkpoint": {}}, (f"spec.checkpoint: Forbidden: checkpoint {FIXED}",)),
    "suspension": Case({"spec.lifecycle.suspend": True}),
    "suspension and image at once": Case({"spec.lifecycle.suspend": True, f"{TRAINER}.image": "train:2"}, TEMPLATE_FORBIDDEN),
    "avoidance of nodes": Case({"spec.scheduling.avoidNodesAfter": 0}),
    "priority": Case(
        {"spec.scheduling.priorityClassName": "high"}, (f"spec.scheduling.priorityClassName: Forbidden: priorityClassName {FIXED}",)
    ),
    "deadlines": Case({"spec.lifecycle.activeDeadlineSeconds": 9, "spec.lifecycle.ttlSecondsAfterFinished": 9}),
    "manager": Case({"spec.lifecycle.managedBy": "a.b/c"}, (f"spec.lifecycle.managedBy: Forbidden: managedBy {FORBIDDEN}",)),
    "rendezvous": Case({"spec.rendezvous.endpoint": "etcd:2379"}, (f"spec.rendezvous: Forbidden: rendezvous {FORBIDDEN}",)),
}


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES.keys())
def test_change_of_a_job_is_taken_or_refused_with_the_way_to_do_it(running: Cluster, case: Case) -> None:
    if not case.words:
        running.apply(changed(case.changes), "--dry-run=server")
        return
    refusal = running.refusal(changed(case.changes))
    for words in case.words:
        assert words in refusal


WHILE_SUSPENDED = {
    "image": Case({f"{TRAINER}.image": "train:2"}),
    "image, and on": Case({f"{TRAINER}.image": "train:2", "spec.lifecycle.suspend": False}),
    "nodes, as a queue does": Case({f"{POD}.nodeSelector": {"pool": "a"}, "spec.lifecycle.suspend": False}),
    "container, processes, checkpoints": Case(
        {f"{WORKERS}.container": "trainer", f"{WORKERS}.procsPerWorker": 2, "spec.checkpoint": {"directory": "/a"}}
    ),
    "rendezvous": Case({"spec.rendezvous.endpoint": "etcd:2379"}, (f"spec.rendezvous: Forbidden: rendezvous {FORBIDDEN}",)),
}


@pytest.mark.parametrize("case", WHILE_SUSPENDED.values(), ids=WHILE_SUSPENDED.keys())
def test_change_of_a_suspended_job(resting: Cluster, case: Case) -> None:
    manifest = changed({"spec.lifecycle.suspend": True, **case.changes})
    if not case.words:
        resting.apply(manifest, "--dry-run=server")
        return
    refusal = resting.refusal(manifest)
    for words in case.words:
        assert words in refusal


def test_order_of_containers_counts_because_the_first_one_trains(cluster: Cluster) -> None:
    plain = changed({f"{POD}.containers.1.env": GONE})
    cluster.apply(plain)
    trainer, sidecar = plain["spec"]["workers"]["template"]["spec"]["containers"]
    assert TEMPLATE_FORBIDDEN[0] in cluster.refusal(changed({f"{POD}.containers": [sidecar, trainer]}))


def test_defaults_are_shown(cluster: Cluster) -> None:
    cluster.apply(changed({f"{WORKERS}.replicas": GONE}))
    spec = cluster.get()["spec"]
    assert spec.pop("workers") == {
        "replicas": 1,
        "procsPerWorker": "auto",
        "template": BASE["spec"]["workers"]["template"],
    }
    assert spec == {
        "rendezvous": {"backend": "etcd-v3", "endpoint": ""},
        "restartPolicy": {"maxRestarts": 10, "rules": [], "backoff": {"initialSeconds": 1, "maxSeconds": 300}},
        "scaling": {"scaleUpDelaySeconds": 0, "metrics": []},
        "scheduling": {"priorityClassName": "", "avoidNodesAfter": 3},
        "lifecycle": {"cleanPods": "Running", "managedBy": "", "suspend": False},
    }


def test_kubectl_scale_changes_the_size_within_the_bounds(cluster: Cluster) -> None:
    cluster.apply(changed({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 5}))
    cluster.kubectl("scale", "ej/digits", "--replicas=5")
    assert ElasticJob.parse(cluster.get()).replicas == 5
    with pytest.raises(ClusterError, match=r"replicas \(6\) is above maxReplicas \(5\): lower replicas or raise maxReplicas"):
        cluster.kubectl("scale", "ej/digits", "--replicas=6")
    with pytest.raises(ClusterError, match=r"replicas \(1\) is below minReplicas \(2\)"):
        cluster.kubectl("scale", "ej/digits", "--replicas=1")


def full_status() -> Status:
    """Every field set, and every bound reached."""
    conditions: Any = ()
    for each in ConditionType:
        conditions = set_condition(
            conditions, type=each, status=each is ConditionType.RUNNING, reason=Reason.TRAINING, message="m", generation=1, now=NOON
        )
    return Status(
        observed_generation=1,
        replicas=4,
        ready_replicas=3,
        selector="elasticjob.dev/job-name=digits",
        workers="3/4",
        desired_replicas=4,
        scale_up_time=NOON,
        world_size=6,
        epoch=2,
        restarts=Restarts(total=3, reported=1, window=2, times=(NOON, NOON), by_cause={"OutOfMemory": 2, "Signal": 1}),
        rendezvous=RendezvousStatus(id="8c-1", backend="etcd-v3", endpoint="etcd:2379"),
        progress=Progress(
            step=3_000_000_000,
            steps_per_second=0.5,
            last_checkpoint_step=7,
            metrics={f"m{i}": "nan" for i in range(40)},
            updated_at=NOON,
        ),
        failing_nodes=(FailingNode(name="n1", failures=3, last_time=NOON),),
        last_failure=Failure(worker="digits-worker-0", rank=3, exit_code=-9, reason="Signal", message="ü" * 20_000, time=NOON),
        conditions=conditions,
        latest_condition=latest_true(conditions),
        start_time=NOON,
        completion_time=NOON,
    )


def test_status_that_the_operator_writes_is_taken_and_comes_back_equal(cluster: Cluster) -> None:
    cluster.apply(BASE)
    status = full_status()
    patch = json.dumps({"status": status.to_api()})
    cluster.kubectl("patch", "ej", "digits", "--subresource=status", "--type=merge", f"--patch={patch}")
    body = cluster.get()
    assert body["status"] == status.to_api()
    assert ElasticJob.parse(body).status == status


def test_status_is_not_written_by_apply(cluster: Cluster) -> None:
    cluster.apply({**BASE, "status": {"replicas": 9}})
    assert "status" not in cluster.get()


def test_kubectl_get_shows_what_a_person_asks_first(cluster: Cluster) -> None:
    cluster.apply(BASE)
    patch = json.dumps({"status": full_status().to_api()})
    cluster.kubectl("patch", "ej", "digits", "--subresource=status", "--type=merge", f"--patch={patch}")
    head, row = cluster.kubectl("get", "ej").splitlines()
    assert head.split() == ["NAME", "WORKERS", "WORLD", "RESTARTS", "STEP", "STATUS", "AGE"]
    assert row.split()[:6] == ["digits", "3/4", "6", "3", "3000000000", "Running"]
    assert "elasticjob.elasticjob.dev/digits" in cluster.kubectl("get", "all")
    scale = json.loads(cluster.kubectl("get", "ej", "digits", "--subresource=scale", "--output=json"))
    assert (scale["spec"]["replicas"], scale["status"]) == (4, {"replicas": 4, "selector": "elasticjob.dev/job-name=digits"})


def test_kubectl_wait_follows_a_condition(cluster: Cluster) -> None:
    cluster.apply(BASE)
    patch = json.dumps({"status": full_status().to_api()})
    cluster.kubectl("patch", "ej", "digits", "--subresource=status", "--type=merge", f"--patch={patch}")
    cluster.kubectl("wait", "ej/digits", "--for=condition=Running", "--timeout=5s")


@pytest.mark.parametrize("path", ["elasticjob", "elasticjob.spec", "elasticjob.status", "elasticjob.spec.workers.template.spec"])
def test_kubectl_explain_describes_every_field(cluster: Cluster, path: str) -> None:
    text = cluster.kubectl("explain", path, "--recursive=false")
    assert "DESCRIPTION:" in text
    assert "<no description>" not in text
    assert "<empty>" not in text


def test_kubectl_explain_says_what_each_part_of_a_job_is_for(cluster: Cluster) -> None:
    text = " ".join(cluster.kubectl("explain", "ej.spec").split())
    for words in (
        "workers <Object> -required- The worker pods: how many, and what each runs.",
        "lifecycle <Object> When the job runs, and how it ends.",
    ):
        assert words in text


def test_template_names_every_pod_field_of_this_api_server(api: ControlPlane) -> None:
    """A field of core/v1 that the CRD does not name could take another one's place unseen. Newer than the list: add it there."""
    schemas = json.loads(api.kubectl("get", "--raw", "/openapi/v3/api/v1"))["components"]["schemas"]
    named = {"PodSpec": [*POD_SPEC_FIELDS, "containers", "restartPolicy"], "Container": [*CONTAINER_FIELDS, "name", "env"]}
    for kind, names in {**named, "EnvVar": [*ENV_FIELDS, "name"]}.items():
        assert set(schemas[f"io.k8s.api.core.v1.{kind}"]["properties"]) <= set(names)


def test_client_side_apply_of_the_crd_works_too(api: ControlPlane) -> None:
    """Its last-applied annotation holds the whole CRD, and an annotation ends at 256 KiB."""
    assert len(json.dumps(yaml.safe_load(CRD.read_text(encoding="utf-8")))) < 200_000
    api.kubectl("apply", "--dry-run=server", "--filename", str(CRD))
