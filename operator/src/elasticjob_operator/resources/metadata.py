"""Metadata of all objects of a job: labels, and the owner reference by which they are garbage-collected."""

from __future__ import annotations

from typing import Any

from elasticjob_api import API_VERSION, KIND, ElasticJob

from elasticjob_operator import names


def owner_reference(job: ElasticJob) -> dict[str, Any]:
    """blockOwnerDeletion makes `kubectl delete --cascade=foreground` wait for the object; where the API server enforces
    it (OwnerReferencesPermissionEnforcement), the operator needs `update` on elasticjobs/finalizers."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def selector_labels(job: ElasticJob, component: str) -> dict[str, str]:
    """Label selector of the job's Services and StatefulSet."""
    return {names.LABEL_JOB: job.name, names.LABEL_COMPONENT: component}


def labels(job: ElasticJob, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "elasticjob",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
        **selector_labels(job, component),
        names.LABEL_JOB_UID: job.uid,
    }


def metadata(job: ElasticJob, name: str, component: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels(job, component),
        "ownerReferences": [owner_reference(job)],
    }


def owned(job: ElasticJob, api_version: str, kind: str, name: str, component: str, **fields: Any) -> dict[str, Any]:
    """An object of the job. `fields`: all but apiVersion, kind and metadata."""
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata(job, name, component), **fields}
