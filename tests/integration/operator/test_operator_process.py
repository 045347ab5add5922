"""The operator itself: killed in the middle, stopped, cut off from the API server, with the chart's rights alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.loopback import ControlPlane
from hack.cluster.output import run
from hack.cluster.programs import program
from hack.cluster.settings import KUBERNETES_VERSION
from hack.support import eventually
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Kube, Namespace
from tests.integration.operator.process import Gate, Operator, changed_kubeconfig
from tests.integration.operator.rendezvous import Agents

NAMESPACE_GOES = "because it is being terminated"
"""The namespaces of the tests before may still be going while an operator watches all of them: that is no missing
right."""

CHART = Path(__file__).parents[3] / "charts" / "elasticjob"


def test_a_restarted_operator_continues_where_it_was_killed(
    ns: Namespace, operator: Operator, training: Callable[..., Agents]
) -> None:
    agents = training(replicas=3)
    agents.plan(4, size=3, restart_count=2)
    eventually(lambda: ns.status("digits").get("restarts", {}).get("total") == 2, what="restarts")
    kept = {name: pod["metadata"]["uid"] for name, pod in ns.workers().items()}
    operator.kill()
    # While no operator runs: a pod is deleted, a pod fails, the job is scaled, the agents continue.
    ns.delete("pods", "digits-worker-0")
    ns.end("digits-worker-1", 143, at=rfc3339())
    ns.scale("digits", 4)
    agents.plan(6, size=1, restart_count=2)
    agents.progress(50)
    operator.restart()
    eventually(lambda: set(ns.workers()) == {f"digits-worker-{index}" for index in range(4)}, what="four workers")
    eventually(
        lambda: ns.workers().get("digits-worker-1", {}).get("status", {}).get("phase") == "Pending",
        what="the failed one is replaced",
    )
    assert ns.workers()["digits-worker-2"]["metadata"]["uid"] == kept["digits-worker-2"], "who trained is left alone"
    eventually(lambda: ns.status("digits").get("round") == 6, what="round")
    eventually(
        lambda: ns.status("digits")["restarts"]["total"] == 3, what="the agents' two, and the pod that failed meanwhile"
    )
    assert ns.status("digits")["progress"]["step"] == 50


def test_the_operator_stops_cleanly(operator: Operator, training: Callable[..., Agents]) -> None:
    training(replicas=2)
    code, _ = operator.stop()
    assert code == 0
    assert "Traceback" not in operator.log_text()


def test_the_operator_continues_after_losing_the_api_server(
    ns: Namespace,
    kube: Kube,
    control_plane: Path,
    tmp_path: Path,
    start_operator: Callable[..., Operator],
    submit: Callable[..., str],
) -> None:
    assert kube.server.hostname
    assert kube.server.port
    gate = Gate(kube.server.hostname, kube.server.port)
    gate.open()
    kubeconfig = changed_kubeconfig(control_plane, tmp_path / "gate.conf", server=f"https://127.0.0.1:{gate.port}")
    operator = start_operator(kubeconfig)
    submit(replicas=2)
    submit("other", replicas=1)
    eventually(lambda: len(ns.workers()) == 3, what="worker pods")
    gate.shut()
    ns.delete("pods", "digits-worker-0")
    ns.delete("elasticjobs", "other")
    ns.scale("digits", 3)
    eventually(lambda: "other-worker-0" not in ns.workers(), what="the garbage collector took the other job's pod")
    assert operator.probe("/healthz") == 200, "an API server that is away is no fault of ours"
    gate.open()
    eventually(
        lambda: set(ns.workers()) == {f"digits-worker-{index}" for index in range(3)}, what="three workers", timeout=150
    )
    gate.cut()
    ns.scale("digits", 2)
    eventually(
        # A pod that was created in the moment before the deletion was seen is the garbage collector's.
        lambda: set(ns.workers()) == {"digits-worker-0", "digits-worker-1"},
        what="two workers and no pod of the deleted job: the watches came back",
        timeout=150,
    )
    gate.shut()


@pytest.mark.parametrize("scope", ["namespaced", "cluster-wide"])
def test_the_charts_rbac_rules_are_sufficient(
    scope: str,
    ns: Namespace,
    control_plane_server: ControlPlane,
    tmp_path: Path,
    start_operator: Callable[..., Operator],
    submit: Callable[..., str],
    agents_of: Callable[[str], Agents],
) -> None:
    """The operator as its ServiceAccount: a whole life without one Forbidden."""
    watched = ns.name if scope == "namespaced" else ""
    kubeconfig = _kubeconfig_of_the_chart(control_plane_server, ns.name, watched, tmp_path)
    operator = start_operator(
        kubeconfig,
        ELASTICJOB_WATCH_NAMESPACES=watched,
        ELASTICJOB_LOG_FORMAT="json",
        ELASTICJOB_CA_NAME="ej-elasticjob-ca",
        ELASTICJOB_NETWORK_POLICIES=json.dumps({"operator": [{"podSelector": {}}], "metricsPort": 9100}),
    )
    submit()
    submit("own", endpoint="", replicas=1)
    eventually(lambda: len(ns.workers()) == 3, what="worker pods")
    eventually(lambda: ns.all("statefulsets"), what="etcd")
    for pod in ns.workers():
        ns.run(pod)
    agents_of("digits").plan(1, size=2)
    eventually(lambda: ns.is_true("digits", "Running"), what="Running")
    ns.patch("services", "digits", {"spec": {"selector": {"edited": "by-hand"}}})
    eventually(
        lambda: "edited" not in ns.all("services")["digits"]["spec"]["selector"], what="the Service is put right"
    )
    ns.scale("digits", 1)
    eventually(lambda: "digits-worker-1" not in ns.workers(), what="shrunk")
    ns.end("own-worker-0", 0, at=rfc3339())
    eventually(lambda: ns.is_true("own", "Succeeded"), what="Succeeded")
    eventually(lambda: not ns.all("statefulsets"), what="etcd is gone")
    eventually(lambda: ns.events("digits"), what="Events")
    operator.stop()
    refused = [
        line for line in operator.log_text().splitlines() if "forbidden" in line.lower() and NAMESPACE_GOES not in line
    ]
    assert not refused, "the chart gives every right that the operator uses"
    records = [json.loads(line) for line in operator.log_text().splitlines()]
    about = [record for record in records if record.get("object", {}).get("name") == "digits"]
    assert any(record.get("reason") == "Training" for record in about), "JSON logs have the job and the reason"


def _kubeconfig_of_the_chart(server: ControlPlane, namespace: str, watched: str, folder: Path) -> Path:
    chosen = [*([f"watchNamespaces={{{watched}}}"] if watched else []), "crds.install=false"]
    flags = [word for each in chosen for word in ("--set", each)]
    text = run(
        [
            program("helm"),
            "template",
            "ej",
            CHART,
            "--namespace",
            namespace,
            "--kube-version",
            KUBERNETES_VERSION,
            *flags,
        ]
    )
    rights = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    objects: list[dict[str, Any]] = [each for each in yaml.safe_load_all(text) if each and each["kind"] in rights]
    for each in objects:  # as helm does: what names no namespace goes into the release's
        where = each["metadata"].get("namespace", namespace)
        server.kubectl("apply", "--namespace", where, "-f", "-", stdin=json.dumps(each))
    (account,) = [each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"]
    token = server.kubectl("create", "token", account, "--namespace", namespace).strip()
    return changed_kubeconfig(server.kubeconfig, folder / "chart.conf", token=token)
