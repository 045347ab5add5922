"""A small client for tests: dicts in, dicts out, one connection a call. On purpose none of the operator's own code."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

Json = dict[str, Any]
JOBS = "/apis/elasticjob.dev/v1alpha1"


class ApiStatusError(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Kube:
    """As the user of a kubeconfig, who has a client certificate or a token."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = urlsplit(cluster["server"])
        self._context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        self._headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        if self._headers:
            return
        with tempfile.NamedTemporaryFile() as pem:
            for part in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(user[part]))
            pem.flush()
            self._context.load_cert_chain(pem.name)

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Json:
        """Raises ApiStatusError."""
        assert self.server.hostname
        connection = http.client.HTTPSConnection(
            self.server.hostname, self.server.port, context=self._context, timeout=30
        )
        try:
            target = f"{path}?{urlencode(query)}" if query else path
            headers = {"Content-Type": kind, **self._headers}
            connection.request(method, target, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            answer: Json = json.loads(response.read())
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiStatusError(response.status, answer.get("message", ""))
        return answer


class Namespace:
    """The test's own namespace: users, kubelets and nodes as the test plays them.

    Worker pods are given by their host names, such as digits-worker-0, or by their own. Of several pods with one host
    name, it is the newest that is not being deleted.
    """

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.name = name

    def path(self, plural: str, name: str = "", subresource: str = "") -> str:
        groups = {
            "elasticjobs": JOBS,
            "elasticjobprogresses": JOBS,
            "statefulsets": "/apis/apps/v1",
            "horizontalpodautoscalers": "/apis/autoscaling/v2",
            "networkpolicies": "/apis/networking.k8s.io/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "podgroups": "/apis/scheduling.k8s.io/v1alpha2",
            "podgroups of Volcano": "/apis/scheduling.volcano.sh/v1beta1",
            "podgroups of Coscheduling": "/apis/scheduling.x-k8s.io/v1alpha1",
            "workloads": "/apis/kueue.x-k8s.io/v1beta2",
        }
        root = groups.get(plural, "/api/v1")
        plural = plural.partition(" of ")[0]
        if plural == "pods" and name:
            name = self.pod_name(name)
        return "/".join(part for part in (root, "namespaces", self.name, plural, name, subresource) if part)

    def pod_name(self, host: str, *, deleting: bool = False) -> str:
        """Of a worker pod; another name is returned as it is. `deleting`: prefer one that is being deleted."""
        if not re.fullmatch(r".+-worker-\d+", host):
            return host
        found = [pod for pod in self.pods() if pod["spec"].get("hostname") == host]
        newest = sorted(found, key=lambda pod: (_is_deleting(pod) is deleting, pod["metadata"]["creationTimestamp"]))
        return str(newest[-1]["metadata"]["name"]) if newest else host

    def pods(self) -> list[Json]:
        found: list[Json] = self.kube.call("GET", self.path("pods"))["items"]
        return found

    def create(self, plural: str, body: Json) -> Json:
        return self.kube.call("POST", self.path(plural), body)

    def get(self, plural: str, name: str) -> Json | None:
        """None: not there."""
        try:
            return self.kube.call("GET", self.path(plural, name))
        except ApiStatusError as error:
            if error.code == 404:
                return None
            raise

    def all(self, plural: str) -> dict[str, Json]:
        items = self.kube.call("GET", self.path(plural))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def delete(self, plural: str, name: str, **options: Any) -> None:
        try:
            self.kube.call("DELETE", self.path(plural, name), options or None)
        except ApiStatusError as error:
            if error.code != 404:
                raise

    def patch(self, plural: str, name: str, body: Json, subresource: str = "") -> Json:
        return self.kube.call("PATCH", self.path(plural, name, subresource), body, "application/merge-patch+json")

    # ElasticJobs

    def job(self, name: str) -> Json:
        found = self.get("elasticjobs", name)
        assert found is not None, f"no ElasticJob {name}"
        return found

    def status(self, name: str) -> Json:
        found: Json = self.job(name).get("status") or {}
        return found

    def condition(self, name: str, type_: str) -> Json:
        """{} while it is not set."""
        conditions = self.status(name).get("conditions") or []
        return next((item for item in conditions if item["type"] == type_), {})

    def is_true(self, name: str, type_: str) -> bool:
        return bool(self.condition(name, type_).get("status") == "True")

    def scale(self, name: str, replicas: int) -> None:
        """As `kubectl scale` does."""
        self.patch("elasticjobs", name, {"spec": {"replicas": replicas}}, "scale")

    def events(self, job: str) -> list[Json]:
        return [item for item in self.all("events").values() if item["involvedObject"]["name"] == job]

    # What kubelets do

    def workers(self) -> dict[str, Json]:
        """By host name."""
        found = [pod for pod in self.pods() if is_worker(pod)]
        found.sort(key=lambda pod: (not _is_deleting(pod), pod["metadata"]["creationTimestamp"]))
        return {pod["spec"].get("hostname") or pod["metadata"]["name"]: pod for pod in found}

    def bind(self, pod: str, node: str) -> None:
        """What the scheduler does. A bound pod waits for its kubelet when it is deleted."""
        pod, target = self.pod_name(pod), {"apiVersion": "v1", "kind": "Node", "name": node}
        self.create(
            f"pods/{pod}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        )

    def run(self, pod: str, node: str = "") -> None:
        if node:
            self.bind(pod, node)
        self.patch(
            "pods", pod, {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, "status"
        )

    def end(self, pod: str, code: int, *, reason: str = "", message: str = "", at: str, started: str = "") -> None:
        """The container named trainer ends. Times as RFC 3339."""
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "startedAt": started or at,
            "finishedAt": at,
        }
        container = {
            "name": "trainer",
            "image": "x",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": terminated},
        }
        phase = "Succeeded" if code == 0 else "Failed"
        status = {
            "phase": phase,
            "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": "False"}],
        }
        self.patch("pods", pod, {"status": status}, "status")

    def remove(self, pod: str) -> None:
        """What a kubelet does with a deleted pod in the end."""
        self.delete("pods", self.pod_name(pod, deleting=True), gracePeriodSeconds=0)

    # Nodes

    def add_node(self, name: str) -> None:
        self.kube.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        self.set_node(name, ready=True, since="2026-01-01T00:00:00Z")

    def set_node(self, name: str, *, ready: bool | None, since: str) -> None:
        """None: its kubelet is not heard."""
        status = {True: "True", False: "False", None: "Unknown"}[ready]
        condition = {"type": "Ready", "status": status, "lastTransitionTime": since}
        path = f"/api/v1/nodes/{name}/status"
        self.kube.call("PATCH", path, {"status": {"conditions": [condition]}}, "application/merge-patch+json")

    def label_node(self, name: str, labels: dict[str, str]) -> None:
        """As a cloud does."""
        body = {"metadata": {"labels": labels}}
        self.kube.call("PATCH", f"/api/v1/nodes/{name}", body, "application/merge-patch+json")

    def remove_node(self, name: str) -> None:
        self.kube.call("DELETE", f"/api/v1/nodes/{name}")


def is_worker(pod: Json) -> bool:
    return bool(pod["metadata"]["labels"].get("elasticjob.dev/component") == "worker")


def _is_deleting(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]
