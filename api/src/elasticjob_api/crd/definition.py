"""The CustomResourceDefinitions of ElasticJob and ElasticJobProgress."""

from __future__ import annotations

from typing import Any

from elasticjob_api import job, progress
from elasticjob_api.crd import validation
from elasticjob_api.crd.schema import structural_schema
from elasticjob_api.progress import JobProgress
from elasticjob_api.refused import add_refused
from elasticjob_api.spec import Spec
from elasticjob_api.status import Status

NAME = f"{job.PLURAL}.{job.GROUP}"


def _column(name: str, path: str, type_: str, description: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "jsonPath": path, "description": description, **more}


_WHOLE = {"x-kubernetes-map-type": "atomic"}
"""Of an object that one program writes, and always as a whole. metadata.managedFields, which the API server computes at
each write, then does not list its fields: they were a quarter of a small job."""

COLUMNS = [
    _column("Workers", ".status.workers", "string", "Ready and desired worker pods."),
    _column("World", ".status.worldSize", "integer", "Worker processes in the current worker group."),
    _column("Restarts", ".status.restarts.total", "integer", "Restarts of the worker group because of failures."),
    _column("Step", ".status.progress.step", "integer", "Training step reached."),
    _column("Status", ".status.summary", "string", "State of the job, or why it is not running."),
    _column("Age", ".metadata.creationTimestamp", "date", "Time since the job was created."),
    _column("Round", ".status.round", "integer", "Rendezvous round of the current worker group.", priority=1),
    _column("Percent", ".status.progress.percent", "integer", "Percent of the training that is done.", priority=1),
    _column("Step seen", ".status.progress.observedAt", "string", "When the operator first saw that step.", priority=1),
    _column("Failure", ".status.lastFailure.reason", "string", "Kind of the last failure.", priority=1),
    _column("Rendezvous", ".status.rendezvous.endpoint", "string", "Rendezvous endpoint.", priority=1),
]


def custom_resource_definition() -> dict[str, Any]:
    """The object to apply. A pure function of the models."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": job.GROUP,
            "names": {
                "kind": job.KIND,
                "listKind": f"{job.KIND}List",
                "plural": job.PLURAL,
                "singular": job.SINGULAR,
                "shortNames": [job.SHORT_NAME],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": job.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.workers.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": COLUMNS,
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


PROGRESS_COLUMNS = [
    _column("Step", ".progress.step", "integer", "Training step reached."),
    _column("Steps/s", ".progress.stepsPerSecond", "number", "Training speed at that step."),
    _column("Percent", ".progress.percent", "integer", "Percent of the training that is done."),
    _column("Seen", ".progress.observedAt", "date", "Time since the operator first saw this step."),
]


def progress_definition() -> dict[str, Any]:
    """The object to apply for ElasticJobProgress. It has no rules and no subresources: it is written most often."""
    schema = structural_schema(JobProgress, defaults=False)
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **{name: {**field, **_WHOLE} for name, field in schema["properties"].items()},
    }
    version = {
        "name": job.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": PROGRESS_COLUMNS,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{progress.PLURAL}.{job.GROUP}"},
        "spec": {
            "group": job.GROUP,
            "names": {
                "kind": progress.KIND,
                "listKind": f"{progress.KIND}List",
                "plural": progress.PLURAL,
                "singular": progress.SINGULAR,
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _root() -> dict[str, Any]:
    """apiVersion, kind and metadata belong to the API server; a schema may only name them."""
    spec = structural_schema(Spec)
    add_refused(spec)
    return {
        "description": job.ElasticJob.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # Kubernetes' own limit, which CEL's cost estimate needs. The rules are stricter.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": spec,
            "status": {**structural_schema(Status, defaults=False), **_WHOLE},
        },
        **validation.JOB,
    }
