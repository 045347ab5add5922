"""The CRD: its surface changes only on purpose, and its parts agree with each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from elasticjob_api.crd import generate
from elasticjob_api.crd.definition import custom_resource_definition
from elasticjob_api.template import CONTAINER_FIELDS, ENV_FIELDS, POD_SPEC_FIELDS
from elasticjob_runtime.contract import Env

ROOT = Path(__file__).parents[3]
TEMPLATE = "spec.workers.template"

SURFACE = """
spec: object, required
spec.checkpoint: object
spec.checkpoint.directory: string = /checkpoints
spec.checkpoint.volume: object
spec.checkpoint.volume.azureFile: object, open
spec.checkpoint.volume.cephfs: object, open
spec.checkpoint.volume.csi: object, open
spec.checkpoint.volume.emptyDir: object, open
spec.checkpoint.volume.hostPath: object, open
spec.checkpoint.volume.nfs: object, open
spec.checkpoint.volume.persistentVolumeClaim: object
spec.checkpoint.volume.persistentVolumeClaim.claimName: string, required
spec.checkpoint.volume.persistentVolumeClaim.readOnly: boolean
spec.lifecycle: object = {}
spec.lifecycle.activeDeadlineSeconds: integer
spec.lifecycle.cleanPods: string = Running
spec.lifecycle.gracefulShutdownSeconds: integer
spec.lifecycle.managedBy: string =
spec.lifecycle.startupDeadlineSeconds: integer
spec.lifecycle.suspend: boolean = False
spec.lifecycle.ttlSecondsAfterFinished: integer
spec.managedBy: string =
spec.rendezvous: object = {}
spec.rendezvous.backend: string = etcd-v3
spec.rendezvous.endpoint: string =
spec.rendezvous.etcd: object
spec.rendezvous.onPartition: string = Available
spec.rendezvous.secretName: string =
spec.rendezvous.etcd.image: string =
spec.rendezvous.etcd.imagePullSecrets: array
spec.rendezvous.etcd.imagePullSecrets[]: object
spec.rendezvous.etcd.imagePullSecrets[].name: string, required
spec.rendezvous.etcd.members: integer = 1
spec.rendezvous.etcd.nodeSelector: object
spec.rendezvous.etcd.nodeSelector[]: string
spec.rendezvous.etcd.priorityClassName: string =
spec.rendezvous.etcd.tolerations: array
spec.rendezvous.etcd.tolerations[]: object
spec.rendezvous.etcd.tolerations[].effect: string
spec.rendezvous.etcd.tolerations[].key: string
spec.rendezvous.etcd.tolerations[].operator: string
spec.rendezvous.etcd.tolerations[].tolerationSeconds: integer
spec.rendezvous.etcd.tolerations[].value: string
spec.rendezvous.etcd.storage: object
spec.rendezvous.etcd.storage.size: int-or-string = 1Gi
spec.rendezvous.etcd.storage.storageClassName: string
spec.rendezvous.etcd.resources: object
spec.rendezvous.etcd.resources.limits: object
spec.rendezvous.etcd.resources.limits[]: int-or-string
spec.rendezvous.etcd.resources.requests: object
spec.rendezvous.etcd.resources.requests[]: int-or-string
spec.restartPolicy: object = {}
spec.restartPolicy.backoff: object = {}
spec.restartPolicy.backoff.initialSeconds: integer = 1
spec.restartPolicy.backoff.maxSeconds: integer = 300
spec.restartPolicy.beforeFirstStep: string = Fail
spec.restartPolicy.maxRestarts: integer = 10
spec.restartPolicy.rules: array = []
spec.restartPolicy.rules[]: object
spec.restartPolicy.rules[].action: string, required
spec.restartPolicy.rules[].exitCodes: array = []
spec.restartPolicy.rules[].exitCodes[]: integer
spec.restartPolicy.rules[].reasons: array = []
spec.restartPolicy.rules[].reasons[]: string
spec.restartPolicy.windowSeconds: integer
spec.scaling: object = {}
spec.scaling.behavior: object, open
spec.scaling.metrics: array = []
spec.scaling.metrics[]: object, open
spec.scaling.scaleUpDelaySeconds: integer = 0
spec.scheduling: object = {}
spec.scheduling.avoidNodesAfter: integer = 3
spec.scheduling.priorityClassName: string =
spec.workers: object, required
spec.workers.allowedReplicas: array
spec.workers.allowedReplicas[]: integer
spec.workers.replicaStep: integer
spec.workers.container: string
spec.workers.maxReplicas: integer
spec.workers.minReplicas: integer
spec.workers.procsPerWorker: int-or-string = auto
spec.workers.runtime: object = {}
spec.workers.runtime.inject: string = Auto
spec.workers.replicas: integer = 1
spec.workers.template: object, required, open
spec.workers.template.metadata: object, open
spec.workers.template.metadata.labels: object
spec.workers.template.metadata.labels[]: string
spec.workers.template.spec: object, required, open
spec.workers.template.spec.activeDeadlineSeconds: integer
spec.workers.template.spec.containers: array, required
spec.workers.template.spec.containers[]: object, open
spec.workers.template.spec.containers[].env: array
spec.workers.template.spec.containers[].env[]: object, open
spec.workers.template.spec.containers[].env[].name: string, required
spec.workers.template.spec.containers[].name: string, required
spec.workers.template.spec.containers[].restartPolicy: string
spec.workers.template.spec.hostname: string
spec.workers.template.spec.restartPolicy: string
spec.workers.template.spec.subdomain: string
status: object
status.completionTime: string
status.conditions: array
status.conditions[]: object
status.conditions[].lastTransitionTime: string, required
status.conditions[].message: string
status.conditions[].observedGeneration: integer
status.conditions[].reason: string, required
status.conditions[].status: string, required
status.conditions[].type: string, required
status.desiredReplicas: integer
status.round: integer
status.failingNodes: array
status.failingNodes[]: object
status.failingNodes[].failures: integer, required
status.failingNodes[].lastTime: string, required
status.failingNodes[].name: string, required
status.freeEnds: array
status.freeEnds[]: object
status.freeEnds[].count: integer, required
status.freeEnds[].index: integer, required
status.freeEnds[].lastTime: string, required
status.history.changes: array
status.history.changes[].formSeconds: number
status.history.changes[].message: string
status.history.changes[].phases.agree: number
status.history.changes[].phases.connect: number
status.history.changes[].phases.form: number
status.history.changes[].phases.interrupt: number
status.history.changes[].phases.detect: number
status.history.changes[].phases.firstStep: number
status.history.changes[].phases.fork: number
status.history.changes[].phases.plan: number
status.history.changes[].phases.restore: number
status.history.changes[].phases.stop: number
status.history.changes[].phases: object
status.history.changes[].reason: string, required
status.history.changes[].restarts: integer
status.history.changes[].resumeSeconds: number
status.history.changes[].round: integer
status.history.changes[].run: integer
status.history.changes[].step: integer
status.history.changes[].stepsLost: integer
status.history.changes[].time: string, required
status.history.changes[].type: string, required
status.history.changes[].workers: integer
status.history.changes[].workersBefore: integer
status.history.changes[].worldSize: integer
status.history.changes[].worldSizeBefore: integer
status.history.changes[]: object
status.history.dropped: object
status.history.dropped[]: integer
status.history.samples: array
status.history.samples[]: string
status.history: object
status.lastFailure: object
status.lastFailure.exitCode: integer
status.lastFailure.message: string
status.lastFailure.podUid: string
status.lastFailure.rank: integer
status.lastFailure.reason: string
status.lastFailure.round: integer
status.lastFailure.time: string
status.lastFailure.worker: string
status.observedGeneration: integer
status.progress: object
status.progress.lastCheckpointStep: integer
status.progress.metrics: object
status.progress.metrics[]: string
status.progress.observedAt: string
status.progress.percent: integer
status.progress.remainingSeconds: integer
status.progress.totalSteps: integer
status.progress.step: integer
status.progress.stepsPerSecond: number
status.progress.updatedAt: string
status.readyReplicas: integer
status.rendezvous: object
status.rendezvous.backend: string
status.rendezvous.endpoint: string
status.rendezvous.id: string
status.rendezvous.storeGeneration: integer
status.rendezvous.storePod: string
status.rendezvous.templateGeneration: integer
status.rendezvous.templateHash: string
status.replicas: integer
status.restarts: object
status.restarts.byCause: object
status.restarts.byCause[]: integer
status.restarts.reported: integer
status.restarts.times: array
status.restarts.times[]: string
status.restarts.total: integer
status.restarts.window: integer
status.scaleUpTime: string
status.selector: string
status.startTime: string
status.summary: string
status.workers: string
status.worldSize: integer
"""


def root_schema() -> dict[str, Any]:
    schema: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def fields(
    schema: dict[str, Any], path: str = "", required: bool = False
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every field below `schema`: path, schema, whether it is required."""
    if path:
        yield path, schema, required
    for name, each in schema.get("properties", {}).items():
        yield from fields(each, f"{path}.{name}".lstrip("."), name in schema.get("required", []))
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from fields(schema[key], f"{path}[]")


def own_fields() -> list[tuple[str, dict[str, Any], bool]]:
    """Without those that every Kubernetes object has, and those of core/v1 that have no type here."""
    ours = {"spec", "status"}
    return [
        (path, schema, required)
        for path, schema, required in fields(root_schema())
        if path.split(".")[0] in ours and ("type" in schema or "anyOf" in schema)
    ]


def described(path: str, schema: dict[str, Any], required: bool) -> str:
    kind = schema.get("type", "int-or-string")
    marks = (", required" if required else "") + (
        ", open" if schema.get("x-kubernetes-preserve-unknown-fields") else ""
    )
    return f"{path}: {kind}{marks}" + (f" = {schema['default']}".rstrip() if "default" in schema else "")


def test_the_surface_changes_only_on_purpose() -> None:
    assert sorted(described(*field) for field in own_fields()) == sorted(SURFACE.strip().splitlines())


def test_group_kind_and_columns_are_stable() -> None:
    crd = custom_resource_definition()
    version = crd["spec"]["versions"][0]
    assert (crd["spec"]["group"], version["name"], crd["metadata"]["name"]) == (
        "elasticjob.dev",
        "v1alpha1",
        "elasticjobs.elasticjob.dev",
    )
    assert crd["spec"]["names"] == {
        "kind": "ElasticJob",
        "listKind": "ElasticJobList",
        "plural": "elasticjobs",
        "singular": "elasticjob",
        "shortNames": ["ej"],
    }
    assert [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")] == [
        "Workers",
        "World",
        "Restarts",
        "Step",
        "Status",
        "Age",
    ]


def test_columns_and_scale_name_existing_fields() -> None:
    version = custom_resource_definition()["spec"]["versions"][0]
    named = [column["jsonPath"] for column in version["additionalPrinterColumns"]] + list(
        version["subresources"]["scale"].values()
    )
    there = {f".{path}" for path, _, _ in own_fields()} | {".metadata.creationTimestamp"}
    assert set(named) <= there


def test_every_field_is_described() -> None:
    values = {path for path, _, _ in own_fields() if path.endswith("[]")}
    silent = {
        path for path, schema, _ in fields(root_schema()["properties"]["spec"], "spec") if not schema.get("description")
    }
    silent |= {
        path
        for path, schema, _ in fields(root_schema()["properties"]["status"], "status")
        if not schema.get("description")
    }
    assert silent - values == set()


def test_integers_have_a_format_and_counts_a_bound() -> None:
    for path, schema, _ in own_fields():
        if schema.get("type") == "integer":
            assert schema.get("format") in {"int32", "int64"}, path
            assert schema["format"] == "int64" or schema["maximum"] <= 2**31 - 1, path


def test_a_status_has_no_defaults() -> None:
    assert [path for path, schema, _ in own_fields() if path.startswith("status") and "default" in schema] == []


def test_the_pod_template_keeps_unknown_fields() -> None:
    closed = [
        path
        for path, schema, _ in own_fields()
        if path.startswith(TEMPLATE)
        and schema.get("type") == "object"
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ]
    assert closed == [f"{TEMPLATE}.metadata.labels"]


@pytest.mark.parametrize(
    ("path", "names"),
    [("spec", POD_SPEC_FIELDS), ("spec.containers[]", CONTAINER_FIELDS), ("spec.containers[].env[]", ENV_FIELDS)],
)
def test_fields_of_the_template_used_by_the_operator_are_declared(path: str, names: list[str]) -> None:
    """Otherwise a rename among them would not show up as a change."""
    schema = next(schema for each, schema, _ in own_fields() if each == f"{TEMPLATE}.{path}")
    assert set(names) <= set(schema["properties"])


def test_rules_reject_every_reserved_variable() -> None:
    rules = root_schema()["properties"]["spec"]["properties"]["workers"]["x-kubernetes-validations"]
    rule = next(rule["rule"] for rule in rules if "c.env.exists" in rule["rule"])
    assert set(re.findall(r"e\.name in \[(.*?)\]", rule)) == {", ".join(f"'{name}'" for name in Env.RESERVED)}
    assert "startsWith" not in rule, "by name, because a prefix would reject variables of future torch releases"


def test_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check", "--root", str(ROOT)]) == 0, capsys.readouterr().err


def test_check_names_what_is_stale_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--root", str(tmp_path)]) == 0
    crd = tmp_path / "crds/elasticjobs.elasticjob.dev.yaml"
    assert yaml.safe_load(crd.read_text(encoding="utf-8")) == custom_resource_definition()
    crd.write_text("edited by hand", encoding="utf-8")
    assert generate.main(["--check", "--root", str(tmp_path)]) == 1
    assert "crds/elasticjobs.elasticjob.dev.yaml is not up to date: run `make generate`" in capsys.readouterr().err
    assert crd.read_text(encoding="utf-8") == "edited by hand"
