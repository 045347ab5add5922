"""/metrics of a real operator over the life of a job, as Prometheus reads it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from hack.support import eventually
from tests.integration.chart import rendered
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator
from tests.integration.operator.rendezvous import Agents


def figure(operator: Operator, name: str, **labels: str) -> float:
    """Sum over all samples of that name with these labels; 0: there is none."""
    samples = [sample for family in text_string_to_metric_families(operator.metrics()) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())


def test_metrics_show_the_life_of_a_job(ns: Namespace, operator: Operator, training: Callable[..., Agents]) -> None:
    agents = training(replicas=2)
    assert figure(operator, "elasticjob_leader") == 1
    assert figure(operator, "elasticjob_pods_created_total") == 2
    assert figure(operator, "elasticjob_reconcile_seconds_count") > 0
    assert figure(operator, "elasticjob_queue_wait_seconds_count") > 0
    assert figure(operator, "elasticjob_api_requests_total", verb="create", resource="pods", code="201") == 3, (
        "one of them a dry run"
    )
    eventually(lambda: figure(operator, "elasticjob_jobs", condition="Running") == 1, what="one job runs")

    agents.progress(10, round_number=1)
    eventually(lambda: ns.status("digits").get("progress", {}).get("step") == 10, what="progress")
    agents.plan(2, size=2, restart_count=1, caused_at=time.time() - 0.5)
    agents.progress(8, round_number=2)
    eventually(lambda: figure(operator, "elasticjob_time_to_resume_seconds_count") == 1, what="time to resume")
    assert figure(operator, "elasticjob_time_to_resume_seconds_sum") >= 0.5
    assert figure(operator, "elasticjob_steps_lost_total") == 3

    ns.end("digits-worker-0", 137, at=rfc3339(), reason="OOMKilled")
    eventually(
        lambda: figure(operator, "elasticjob_restarts_total", cause="OutOfMemory") == 1,
        what="a restart, with its cause",
    )
    eventually(lambda: figure(operator, "elasticjob_pods_created_total") == 3, what="a third pod")

    ns.scale("digits", 3)
    eventually(lambda: (spec := agents.spec()) and spec.wanted == 3, what="the agents are told")
    agents.plan(3, size=3, restart_count=2)
    eventually(lambda: figure(operator, "elasticjob_resize_seconds_count") == 1, what="a resize")

    ns.delete("elasticjobs", "digits")
    eventually(lambda: figure(operator, "elasticjob_jobs", condition="Running") == 0, what="no job runs")


def test_logs_are_json_with_job_and_reason_and_without_the_template(
    ns: Namespace, start_operator: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    operator = start_operator(ELASTICJOB_LOG_FORMAT="json")
    container = {"name": "trainer", "image": "none", "env": [{"name": "TOKEN", "value": "hunter2"}]}
    submit(replicas=2, template={"spec": {"containers": [container]}})
    eventually(lambda: len(ns.workers()) == 2, what="two workers")
    ns.end("digits-worker-0", 1, at=rfc3339())
    eventually(lambda: ns.status("digits").get("restarts", {}).get("total") == 1, what="a restart")
    submit("refused", template={"spec": {"containers": [{**container, "imagePullPolicy": "hunter2-never"}]}})
    eventually(lambda: ns.condition("refused", "Accepted").get("status") == "False", what="refused")
    operator.stop()
    records = [json.loads(line) for line in operator.log_text().splitlines()]
    created = [record for record in records if record.get("reason") == "WorkerCreated"]
    assert created[0]["object"]["name"] == "digits"
    assert created[0]["object"]["namespace"] == ns.name
    lines = [line for line in operator.log_text().splitlines() if "hunter2" in line]
    assert all("imagePullPolicy" in line for line in lines), "the server's words on what it refused, and nothing else"


def test_operator_may_open_as_many_sockets_as_there_can_be_etcds(
    ns: Namespace, start_operator: Callable[..., Operator], submit: Callable[..., str]
) -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), most))  # as a container runtime may have it
    try:
        operator = start_operator()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert figure(operator, "process_max_fds") == most
    submit(replicas=1)
    eventually(lambda: len(ns.workers()) == 1, what="it works")


def test_the_charts_own_test_is_content_with_an_operator_and_with_nothing_else(operator: Operator) -> None:
    """`helm test` runs this in a pod; here, the same script asks the operator of this test."""
    (pod,) = [item for item in rendered() if item["kind"] == "Pod"]
    *_, script = pod["spec"]["containers"][0]["command"]
    service = "ej-elasticjob-metrics.system.svc"
    assert service in script

    def run(port: int) -> subprocess.CompletedProcess[str]:
        quick = script.replace(service, "127.0.0.1").replace(":8080/", f":{port}/").replace("range(30)", "range(2)")
        return subprocess.run([sys.executable, "-c", quick], capture_output=True, text=True, check=False)

    assert run(operator.probe_port).returncode == 0
    operator.kill()
    gone = run(operator.probe_port)
    assert gone.returncode == 1
    assert "no operator is ready" in gone.stderr
