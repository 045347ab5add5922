"""The objects that the client reads and writes, as the API server has them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from elasticjob.cluster.http import MERGE_PATCH, METADATA, TABLE, ApiServer, Json
from elasticjob.cluster.watching import pages
from elasticjob.decisions.flag_values import job_name
from elasticjob.errors import ElasticJobError, ForbiddenError
from elasticjob.names import API_VERSION, CRD, OPERATOR_LABELS, PLURAL, PROGRESS_PLURAL, worker_selector
from elasticjob.state.progress import with_progress

if TYPE_CHECKING:
    from elasticjob.cluster.local import LocalApi


class Cluster:
    """One API server, with a default namespace."""

    def __init__(self, api: ApiServer | LocalApi) -> None:
        self.api = api
        self.namespace = api.target.namespace

    # ElasticJobs

    def jobs_path(
        self, namespace: str | None = None, name: str = "", subresource: str = "", *, plural: str = PLURAL
    ) -> str:
        """`namespace`: "" for all."""
        namespace = self.namespace if namespace is None else namespace
        parts = ["", "apis", API_VERSION, *(["namespaces", quote(namespace, safe="")] if namespace else []), plural]
        return "/".join([*parts, *(part for part in (name, subresource) if part)])

    def job_path(self, name: str, namespace: str | None = None, subresource: str = "") -> str:
        """Of one job, never of all: raises UsageError for what cannot be a name."""
        return self.jobs_path(namespace, job_name(name), subresource)

    def jobs(self, namespace: str | None = None, selector: str = "") -> list[Json]:
        return self.list(self.jobs_path(namespace), labelSelector=selector)

    def listed(self, namespace: str | None = None, selector: str = "") -> Iterator[list[Json]]:
        """Of each job its metadata, what the CRD prints, of a large job one part in a hundred, and its progress; page
        by page."""
        beside = _Beside(pages(self.api, self.progress_path(namespace)))
        for answer in pages(self.api, self.jobs_path(namespace), accept=TABLE, labelSelector=selector):
            titles = [column_definition["name"] for column_definition in answer["columnDefinitions"]]
            rows = [(row["object"], dict(zip(titles, row["cells"], strict=True))) for row in answer["rows"] or ()]
            yield [beside.added_to(_job(partial, cells)) for partial, cells in rows]

    def names(self, namespace: str | None = None, selector: str = "") -> list[str]:
        """Of all jobs, without the rest of them."""
        found = self.list(self.jobs_path(namespace), accept=METADATA, labelSelector=selector)
        return [item["metadata"]["name"] for item in found]

    def progress_path(self, namespace: str | None = None, name: str = "") -> str:
        """Of ElasticJobProgresses. `namespace`: "" for all."""
        return self.jobs_path(namespace, name, plural=PROGRESS_PLURAL)

    def progress(self, name: str, namespace: str | None = None) -> Json | None:
        """The ElasticJobProgress of a job. None: it has none, or it may not or cannot be read."""
        with contextlib.suppress(ElasticJobError):
            return self.api.get(self.progress_path(namespace, job_name(name)))
        return None

    def progresses(self, namespace: str | None = None) -> Callable[[Json], Json]:
        """Adds to a job the progress that is beside it. Jobs are to be given in the order of the API server's lists."""
        return _Beside(pages(self.api, self.progress_path(namespace))).added_to

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
        return self._in_namespace("/api/v1", namespace, "pods")

    def workers(self, job: str, namespace: str | None = None) -> list[Json]:
        """Its worker pods."""
        return self.list(self.pods_path(namespace), labelSelector=worker_selector(job))

    def events(self, uid: str, namespace: str | None = None) -> list[Json]:
        return self.list(self._in_namespace("/api/v1", namespace, "events"), fieldSelector=f"involvedObject.uid={uid}")

    # The cluster

    def places(self, queue: str, namespace: str) -> dict[str, int]:
        """Workload -> its place in a LocalQueue of Kueue, from 1. Empty: Kueue's visibility API does not answer."""
        pending = f"localqueues/{quote(queue, safe='')}/pendingworkloads"
        path = self._in_namespace("/apis/visibility.kueue.x-k8s.io/v1beta2", namespace, pending)
        try:
            items = self.api.get(path).get("items") or ()
        except ElasticJobError:
            return {}
        return {str(item["metadata"]["name"]): int(item["positionInLocalQueue"]) + 1 for item in items}

    def cluster_queue(self, queue: str) -> Json:
        """The ClusterQueue of a LocalQueue. Raises NotFoundError or ForbiddenError."""
        kueue = "/apis/kueue.x-k8s.io/v1beta2"
        path = self._in_namespace(kueue, None, f"localqueues/{quote(queue, safe='')}")
        name = self.api.get(path)["spec"]["clusterQueue"]
        return self.api.get(f"{kueue}/clusterqueues/{quote(name, safe='')}")

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

    def may(self, verb: str, resource: str, group: str) -> bool:
        """Whether the user has this right. `resource` may name a subresource: pods/log."""
        resource, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "resource": resource,
            "subresource": subresource,
            "group": group,
            "namespace": self.namespace,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self.api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer.get("status", {}).get("allowed"))

    def _in_namespace(self, api: str, namespace: str | None, rest: str) -> str:
        return f"{api}/namespaces/{quote(namespace or self.namespace, safe='')}/{rest}"

    def list(self, path: str, **query: Any) -> list[Json]:
        """All objects, page by page."""
        return [item for answer in pages(self.api, path, **query) for item in answer.get("items") or ()]


class _Beside:
    """ElasticJobProgresses, which are read page by page as the jobs beside them are: both lists have one order."""

    def __init__(self, pages: Iterator[Json]) -> None:
        self._pages = pages
        self._known: dict[str, Json] = {}
        self._last = ""

    def added_to(self, job: Json) -> Json:
        """`job` with the newest progress in its status."""
        key = _key(job)
        while self._last < key and (page := self._next()) is not None:
            for item in page:
                self._last = _key(item)
                self._known[self._last] = item
        return dict(with_progress(job, self._known.get(key)))

    def _next(self) -> list[Json] | None:
        """None: there are no more, or they may not or cannot be read, as of an older CRD."""
        with contextlib.suppress(ElasticJobError):
            answer = next(self._pages, None)
            return None if answer is None else answer.get("items") or []
        return None


def _key(body: Json) -> str:
    """By which the API server orders a list."""
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


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
        "progress": {"step": cells["Step"], "observedAt": cells.get("Step seen")}
        if cells.get("Step") is not None
        else None,
    }
    return {
        "metadata": partial["metadata"],
        "status": {key: value for key, value in status.items() if value is not None},
    }
