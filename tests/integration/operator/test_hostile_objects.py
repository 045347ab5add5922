"""An object's fault stays that object's, whatever the API server accepts: no neighbour waits, and no operator ends."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elasticjob_operator import names

from hack.support import eventually
from tests.integration.operator.kube import Kube, Namespace
from tests.integration.operator.process import Operator

MEBIBYTES = 1 << 20
LIMIT = 512 * MEBIBYTES
"""The chart's memory limit."""
LABELS = {
    names.LABEL_JOB: "neighbour",
    names.LABEL_JOB_UID: "x" * 63,
    names.LABEL_COMPONENT: names.COMPONENT_WORKER,
    names.LABEL_INDEX: "9" * 63,
    names.LABEL_RUN: "1e9",
    "app.kubernetes.io/managed-by": "elasticjob-operator",
}


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


WIDE = "[" + ",".join(["{}"] * 340_000) + "]"
POD = {"containers": [{"name": "trainer", "image": "none"}]}


def job(name: str, unknown: str) -> str:
    """As text: Python's own JSON is too shallow."""
    spec = {"workers": {"replicas": 1, "template": {"spec": {**POD, "zz": "UNKNOWN"}}}}
    text = json.dumps(
        {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}
    )
    return text.replace('"UNKNOWN"', unknown)


def fields_of(manager: str, levels: int) -> str:
    """managedFields of that many levels."""
    owned = '{"f:spec":' + '{"f:a":' * levels + "{}" + "}" * levels + "}"
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": "OWNED",
    }
    return json.dumps(entry).replace('"OWNED"', owned)


def labelled(name: str, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "labels": LABELS, **metadata}


INVALID = {
    "deep-250": (deep(250), r"spec\.workers\.template\.spec\.zz.*: nested more than 64 levels deep"),
    "deep-1100": (deep(1100), r"spec\.workers\.template\.spec\.zz.*: nested more than 64 levels deep"),
    "deep-9000": (deep(9000), r"spec\.workers\.template\.spec\.zz.*: nested more than 64 levels deep"),
    "wide": (WIDE, "values are too many"),
    "long": (json.dumps("x" * 1_000_000), "are too many"),
}
"""ElasticJobs: an unknown field of the template, and what their status says."""

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a pod with labels that are no numbers": ("pods", {"metadata": labelled("hostile-1"), "spec": POD}),
    "a pod without an owner, of a thousand containers": (
        "pods",
        {
            "metadata": labelled("hostile-2"),
            "spec": {"containers": [{"name": f"c-{number}", "image": "none"} for number in range(1000)]},
        },
    ),
    "a policy of a megabyte": (
        "networkpolicies",
        {
            "metadata": labelled("hostile-3"),
            "spec": {
                "podSelector": {},
                "ingress": [{"ports": [{"port": 1 + number % 65535} for number in range(40_000)]}],
            },
        },
    ),
    "a policy with labels of a megabyte": (
        "networkpolicies",
        {
            "metadata": {
                "name": "hostile-4",
                "labels": {**LABELS, **{f"l{number}": "x" * 60 for number in range(12_000)}},
            },
            "spec": {"podSelector": {}},
        },
    ),
    "a service": ("services", {"metadata": labelled("hostile-5"), "spec": {"ports": [{"port": 1}]}}),
    "a StatefulSet of another kind": (
        "statefulsets",
        {
            "metadata": labelled("hostile-6"),
            "spec": {
                "serviceName": "x",
                "replicas": 0,
                "selector": {"matchLabels": {"x": "y"}},
                "template": {"metadata": {"labels": {"x": "y"}}, "spec": POD},
            },
        },
    ),
    "an autoscaler": (
        "horizontalpodautoscalers",
        {
            "metadata": labelled("hostile-7"),
            "spec": {"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}},
        },
    ),
    "a Secret of a megabyte": (
        "secrets",
        {"metadata": labelled("hostile-8"), "stringData": {"username": "x" * 1_000_000}},
    ),
    "an Event of a neighbour": (
        "events",
        {
            "metadata": labelled("hostile-9"),
            "involvedObject": {"kind": "Pod", "name": "neighbour-worker-0", "namespace": "NAMESPACE"},
            "message": "\x1b[31m" + "x" * 100_000,
        },
    ),
}


@pytest.fixture
def post(kube: Kube, ns: Namespace) -> Callable[[str, str], int]:
    """Creates an object from text; returns the HTTP status."""

    def send(plural: str, text: str) -> int:
        assert kube.server.hostname
        connection = http.client.HTTPSConnection(
            kube.server.hostname, kube.server.port, context=kube._context, timeout=60
        )
        try:
            connection.request("POST", ns.path(plural), text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    return send


def memory(operator: Operator) -> int:
    """The most that it has used, bytes."""
    status = Path(f"/proc/{operator.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def assert_healthy(operator: Operator) -> None:
    assert operator.returncode is None
    assert operator.probe("/healthz") == 200
    assert memory(operator) < LIMIT
    assert "Traceback" not in operator.log_text()


def said(ns: Namespace, name: str) -> tuple[str, str]:
    """Reason and message of its Event: Python cannot parse the job itself."""
    events = [event for event in ns.events(name) if event["reason"] == "InvalidSpec"]
    return (events[-1]["reason"], events[-1]["message"]) if events else ("", "")


def assert_starts(ns: Namespace, submit: Callable[..., str], name: str) -> None:
    """The API server itself takes minutes to write the status of large jobs, on a busy machine."""
    submit(name=name, replicas=1)
    eventually(
        lambda: any(event["reason"] == "WorkerCreated" for event in ns.events(name)), 240, what=f"pods of {name}"
    )


def test_hostile_objects_hurt_no_neighbour_and_no_operator(
    ns: Namespace, post: Callable[[str, str], int], submit: Callable[..., str], start_operator: Callable[..., Operator]
) -> None:
    """Through kopf's watch, the resync and every informer, and at the next start through their lists."""
    operator = start_operator(ELASTICJOB_RESYNC_SECONDS="1")
    for name, (unknown, _) in INVALID.items():
        assert post("elasticjobs", job(name, unknown)) == 201, name
    for name, (plural, body) in OTHERS.items():
        assert post(plural, json.dumps(body).replace("NAMESPACE", ns.name)) == 201, name
    pod = {"metadata": labelled("fields"), "spec": POD}
    text = json.dumps(pod).replace('"labels"', f'"managedFields": [{fields_of("hostile", 2000)}], "labels"', 1)
    assert post("pods", text) in (201, 400, 422)

    for name, (_, message) in INVALID.items():
        eventually(lambda name=name: said(ns, name)[0] == "InvalidSpec", 240, what=f"InvalidSpec of {name}")  # type: ignore[misc]
        assert re.search(message, said(ns, name)[1]), name
    assert_starts(ns, submit, "neighbour")
    assert_healthy(operator)
    operator.kill()
    operator.restart()
    assert_starts(ns, submit, "later")
    assert_healthy(operator)


def test_many_large_jobs_are_listed_within_the_memory_limit(
    ns: Namespace, post: Callable[[str, str], int], submit: Callable[..., str], start_operator: Callable[..., Operator]
) -> None:
    """Twenty-five jobs, each of a megabyte of empty objects, once ended the operator at each start."""
    for number in range(25):
        assert post("elasticjobs", job(f"wide-{number}", WIDE)) == 201
    operator = start_operator()
    assert_starts(ns, submit, "neighbour")
    assert_healthy(operator)
    print(f"most memory: {memory(operator) / MEBIBYTES:.0f} MiB")
