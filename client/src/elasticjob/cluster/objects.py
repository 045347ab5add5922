"""The objects that the client reads and writes, as the API server has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from elasticjob.cluster.http import MERGE_PATCH, METADATA, TABLE, ApiServer, Json
from elasticjob.decisions.flag_values import job_name
from elasticjob.errors import ElasticJobError, ForbiddenError
from elasticjob.names import API_VERSION, CRD, OPERATOR_LABELS, PLURAL, worker_selector

if TYPE_CHECKING:
    from elasticjob.cluster.local import LocalApi

PAGE = 500
"""Objects per list request."""


class Cluster:
    """One API server, with a default namespace."""

    def __init__(self, api: ApiServer | LocalApi) -> None:
        self.api = api
        self.namespace = api.target.namespace

    # ElasticJobs

    def jobs_path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """`namespace`: "" for all."""
        namespace = self.namespace if namespace is None else namespace
        parts = ["", "apis", API_VERSION, *(["namespaces", quote(namespace, safe="")] if namespace else []), PLURAL]
        return "/".join([*parts, *(part for part in (name, subresource) if part)])

    def job_path(self, name: str, namespace: str | None = None, subresource: str = "") -> str:
        """Of one job, never of all: raises UsageError for what cannot be a name."""
        return self.jobs_path(namespace, job_name(name), subresource)

    def jobs(self, namespace: str | None = None, selector: str = "") -> list[Json]:
        return self.list(self.jobs_path(namespace), labelSelector=selector)

    def listed(self, namespace: str | None = None, selector: str = "") -> list[Json]:
        """Of each job its metadata, and what the CRD prints: of a large job, one part in a hundred."""
        found, path = list[Json](), self.jobs_path(namespace)
        for answer in self._pages(path, accept=TABLE, labelSelector=selector):
            titles = [column_definition["name"] for column_definition in answer["columnDefinitions"]]
            found += [_job(row["object"], dict(zip(titles, row["cells"], strict=True))) for row in answer["rows"] or ()]
        return found

    def names(self, namespace: str | None = None, selector: str = "") -> list[str]:
        """Of all jobs, without the rest of them."""
        found = self.list(self.jobs_path(namespace), accept=METADATA, labelSelector=selector)
        return [each["metadata"]["name"] for each in found]

    def job(self, name: str, namespace: str | None = None) -> Json:
        """Raises NotFoundError."""
        return self.api.get(self.job_path(name, namespace))

    def create_job(self, manifest: Json, *, dry_run: bool = False) -> Json:
        namespace = manifest["metadata"].get("namespace") or self.namespace
        query = {"fieldValidation": "Strict", "fieldManager": "elasticjob"} | ({"dryRun": "All"} if dry_run else {})
        return self.api.call("POST", self.jobs_path(namespace), manifest, "application/json", **query)

    def patch_job(self, name: str, body: Json, subresource: str = "", namespace: str | None = None) -> Json:
        path = self.job_path(name, namespace, subresource)
        return self.api.call("PATCH", path, body, MERGE_PATCH, fieldManager="elasticjob")

    def delete_job(self, name: str, namespace: str | None = None) -> Json:
        """In the foreground: the job is gone once its pods are."""
        body = {"propagationPolicy": "Foreground"}
        return self.api.call("DELETE", self.job_path(name, namespace), body)

    # What belongs to a job

    def pods_path(self, namespace: str | None = None) -> str:
        return f"/api/v1/namespaces/{quote(namespace or self.namespace, safe='')}/pods"

    def workers(self, job: str, namespace: str | None = None) -> list[Json]:
        """Its worker pods."""
        return self.list(self.pods_path(namespace), labelSelector=worker_selector(job))

    def events(self, uid: str, namespace: str | None = None) -> list[Json]:
        path = f"/api/v1/namespaces/{quote(namespace or self.namespace, safe='')}/events"
        return self.list(path, fieldSelector=f"involvedObject.uid={uid}")

    # The cluster

    def places(self, queue: str, namespace: str) -> dict[str, int]:
        """Workload -> its place in a LocalQueue of Kueue, from 1. Empty: Kueue's visibility API does not answer."""
        where = f"namespaces/{quote(namespace, safe='')}/localqueues/{quote(queue, safe='')}/pendingworkloads"
        try:
            items = self.api.get(f"/apis/visibility.kueue.x-k8s.io/v1beta2/{where}").get("items") or ()
        except ElasticJobError:
            return {}
        return {str(item["metadata"]["name"]): int(item["positionInLocalQueue"]) + 1 for item in items}

    def cluster_queue(self, queue: str, namespace: str | None = None) -> Json:
        """The ClusterQueue of a LocalQueue. Raises NotFoundError or ForbiddenError."""
        namespace = self.namespace if namespace is None else namespace
        where = f"namespaces/{quote(namespace, safe='')}/localqueues/{quote(queue, safe='')}"
        name = self.api.get(f"/apis/kueue.x-k8s.io/v1beta2/{where}")["spec"]["clusterQueue"]
        return self.api.get(f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{quote(name, safe='')}")

    def version(self) -> Json:
        return self.api.get("/version")

    def crd(self) -> Json:
        return self.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}")

    def check_namespace(self, name: str) -> None:
        """Raises NotFoundError. Says nothing to users who may not read namespaces."""
        with contextlib.suppress(ForbiddenError):
            self.api.get(f"/api/v1/namespaces/{quote(name, safe='')}")

    def operators(self) -> list[Json]:
        """Deployments of the operator, in all namespaces."""
        return self.list("/apis/apps/v1/deployments", labelSelector=OPERATOR_LABELS)

    def nodes(self) -> list[Json]:
        return self.list("/api/v1/nodes")

    def may(self, verb: str, resource: str, group: str = "", namespace: str | None = None) -> bool:
        """Whether the user has this right. `resource` may name a subresource: pods/log."""
        resource, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "resource": resource,
            "subresource": subresource,
            "group": group,
            "namespace": self.namespace if namespace is None else namespace,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self.api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer.get("status", {}).get("allowed"))

    def list(self, path: str, **query: Any) -> list[Json]:
        """All objects, page by page."""
        return [item for answer in self._pages(path, **query) for item in answer.get("items") or ()]

    def _pages(self, path: str, **query: Any) -> Iterator[Json]:
        token = ""
        while True:
            answer = self.api.get(path, limit=PAGE, **{"continue": token}, **query)
            yield answer
            token = (answer.get("metadata") or {}).get("continue") or ""
            if not token:
                return


def _job(partial: Json, cells: Json) -> Json:
    """A job of which only this is known. `cells`: of the CRD's columns, which an older CRD may lack."""
    ready, _, desired = str(cells.get("Workers") or "").partition("/")
    status = {
        "summary": cells.get("Status"),
        "readyReplicas": int(ready) if ready.isdecimal() else None,
        "desiredReplicas": int(desired) if desired.isdecimal() else None,
        "worldSize": cells.get("World"),
        "round": cells.get("Round"),
        "restarts": {"total": cells.get("Restarts")},
        "progress": {"step": cells["Step"]} if cells.get("Step") is not None else None,
    }
    return {"metadata": partial["metadata"], "status": {key: each for key, each in status.items() if each is not None}}
