"""ElasticJobs with kubectl: defaults, `scale`, `get`, `wait` and `explain`."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
import yaml
from elasticjob_api import (
    Change,
    ConditionType,
    ElasticJob,
    FailingNode,
    Failure,
    History,
    Phases,
    Progress,
    Reason,
    RendezvousStatus,
    Restarts,
    Sample,
    Status,
    StoredHistory,
    set_condition,
    summary_of,
)
from elasticjob_api.history import MAX_CHANGES, MAX_SAMPLES
from elasticjob_api.template import CONTAINER_FIELDS, ENV_FIELDS, POD_SPEC_FIELDS, VOLUME_SOURCES

from hack.cluster import ClusterError, ControlPlane
from tests.integration.manifests import BASE, CRD, GONE, WORKERS, Cluster, api, changed, cluster

__all__ = ["api", "cluster"]

NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, tzinfo=datetime.timezone.utc)


def test_the_api_server_fills_in_the_defaults(cluster: Cluster) -> None:
    cluster.apply(changed({f"{WORKERS}.replicas": GONE}))
    spec = cluster.get()["spec"]
    assert spec.pop("workers") == {
        "replicas": 1,
        "procsPerWorker": "auto",
        "runtime": {"inject": "Auto"},
        "template": BASE["spec"]["workers"]["template"],
    }
    assert spec == {
        "rendezvous": {
            "type": "Auto",
            "backend": "etcd-v3",
            "endpoint": "",
            "onPartition": "Available",
            "secretName": "",
        },
        "failurePolicy": {
            "maxRestarts": 10,
            "rules": [],
            "backoff": {"initialSeconds": 1, "maxSeconds": 300},
            "beforeFirstStep": "Fail",
            "hang": {"action": "Restart"},
            "stragglers": "Report",
        },
        "scaling": {"scaleUpDelaySeconds": 0, "metrics": []},
        "scheduling": {
            "priorityClassName": "",
            "avoidNodesAfter": 3,
            "queue": {"step": 1, "surplusPriorityClassName": ""},
        },
        "suspend": False,
        "lifecycle": {"cleanPods": "Running"},
        "managedBy": "",
    }


def test_kubectl_scale_changes_the_size_within_the_bounds(cluster: Cluster) -> None:
    cluster.apply(changed({f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 5}))
    cluster.kubectl("scale", "ej/digits", "--replicas=5")
    assert ElasticJob.parse(cluster.get()).replicas == 5
    with pytest.raises(
        ClusterError, match=r"replicas \(6\) is above maxReplicas \(5\): lower replicas or raise maxReplicas"
    ):
        cluster.kubectl("scale", "ej/digits", "--replicas=6")
    with pytest.raises(ClusterError, match=r"replicas \(1\) is below minReplicas \(2\)"):
        cluster.kubectl("scale", "ej/digits", "--replicas=1")


def test_a_job_without_replicas_has_its_smallest_size_and_can_be_scaled(cluster: Cluster) -> None:
    bounds = {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 5}
    cluster.apply(changed({**bounds, f"{WORKERS}.replicas": GONE}))
    assert ElasticJob.parse(cluster.get()).replicas == 2
    cluster.kubectl("scale", "ej/digits", "--replicas=3")
    assert ElasticJob.parse(cluster.get()).replicas == 3


def test_server_side_apply_without_replicas_keeps_what_an_autoscaler_set(cluster: Cluster) -> None:
    bounds = {f"{WORKERS}.minReplicas": 2, f"{WORKERS}.maxReplicas": 8}
    first = changed({**bounds, f"{WORKERS}.replicas": 2})
    again = changed({**bounds, f"{WORKERS}.replicas": GONE})
    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(first))
    cluster.kubectl("scale", "ej/digits", "--replicas=5")
    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(again))
    assert ElasticJob.parse(cluster.get()).replicas == 5


def full_status() -> Status:
    """A status with every field set, some to their limits."""
    conditions: Any = ()
    holds = (ConditionType.ACCEPTED, ConditionType.RUNNING)
    for item in ConditionType:
        conditions = set_condition(
            conditions, type=item, status=item in holds, reason=Reason.TRAINING, message="m", generation=1, now=NOON
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
        round=2,
        restarts=Restarts(total=3, reported=1, window=2, times=(NOON, NOON), by_cause={"OutOfMemory": 2, "Signal": 1}),
        rendezvous=RendezvousStatus(id="8c-1", backend="etcd-v3", endpoint="etcd:2379"),
        progress=Progress(
            step=3_000_000_000,
            steps_per_second=0.5,
            total_steps=4_000_000_000,
            percent=75,
            remaining_seconds=3600,
            last_checkpoint_step=7,
            metrics={f"m{i}": "nan" for i in range(40)},
            updated_at=NOON,
        ),
        history=StoredHistory(
            History(
                changes=(
                    Change(
                        time=NOON,
                        type="Round",
                        reason="WorkerFailed",
                        message="m",
                        run=1,
                        round=2,
                        restarts=1,
                        world_size_before=4,
                        world_size=6,
                        workers_before=4,
                        workers=4,
                        step=7,
                        steps_lost=3,
                        form_seconds=0.25,
                        resume_seconds=1.0,
                        phases=Phases(detect=0.25, first_step=1.0),
                    ),
                )
                * MAX_CHANGES,
                dropped={"WorkerFailed": 9},
                samples=(str(Sample(time=NOON, step=7, world_size=6, steps_per_second=1.5)),) * MAX_SAMPLES,
            ).to_api()
        ),
        failing_nodes=(FailingNode(name="n1", failures=3, last_time=NOON),),
        last_failure=Failure(
            worker="digits-worker-0", rank=3, exit_code=-9, reason="Signal", message="ü" * 20_000, time=NOON
        ),
        conditions=conditions,
        summary=summary_of(conditions),
        start_time=NOON,
        completion_time=NOON,
    )


def test_the_status_that_the_operator_writes_is_stored_unchanged(cluster: Cluster) -> None:
    cluster.apply(BASE)
    status = full_status()
    cluster.set_status(status.to_api())
    body = cluster.get()
    assert body["status"] == status.to_api()
    assert ElasticJob.parse(body).status == status


def test_apply_does_not_write_the_status(cluster: Cluster) -> None:
    cluster.apply({**BASE, "status": {"replicas": 9}})
    assert "status" not in cluster.get()


def test_kubectl_gets_what_the_operator_writes_and_waits_for_it(cluster: Cluster) -> None:
    cluster.apply(BASE)
    cluster.set_status(full_status().to_api())
    head, row = cluster.kubectl("get", "ej").splitlines()
    assert head.split() == ["NAME", "WORKERS", "WORLD", "RESTARTS", "STEP", "STATUS", "AGE"]
    assert row.split()[:6] == ["digits", "3/4", "6", "3", "3000000000", "Running"]
    wide_head, wide_row = cluster.kubectl("get", "ej", "--output=wide").splitlines()
    assert wide_head.split()[-6:] == ["ROUND", "PERCENT", "STEP", "SEEN", "FAILURE", "RENDEZVOUS"]
    assert wide_row.split()[-4:] == ["2", "75", "Signal", "etcd:2379"]
    assert "elasticjob" not in cluster.kubectl("get", "all"), (
        "`kubectl delete all --all` would delete weeks of training"
    )
    scale = json.loads(cluster.kubectl("get", "ej", "digits", "--subresource=scale", "--output=json"))
    assert (scale["spec"]["replicas"], scale["status"]) == (
        4,
        {"replicas": 4, "selector": "elasticjob.dev/job-name=digits"},
    )
    cluster.kubectl("wait", "ej/digits", "--for=condition=Running", "--timeout=5s")


@pytest.mark.parametrize(
    "path", ["elasticjob", "elasticjob.spec", "elasticjob.status", "elasticjob.spec.workers.template.spec"]
)
def test_kubectl_explain_describes_every_field(cluster: Cluster, path: str) -> None:
    text = cluster.kubectl("explain", path, "--recursive=false")
    assert "DESCRIPTION:" in text
    assert "<no description>" not in text
    assert "<empty>" not in text


def test_kubectl_explain_says_what_each_part_of_the_spec_is_for(cluster: Cluster) -> None:
    text = " ".join(cluster.kubectl("explain", "ej.spec").split())
    for words in (
        "workers <Object> -required- The worker pods: how many to run, and their template.",
        "lifecycle <Object> Deadlines, how worker pods end, and what happens when the job has finished.",
    ):
        assert words in text


def test_the_crd_names_every_pod_field_of_this_api_server(api: ControlPlane) -> None:
    """Otherwise a template could swap one unlisted field for another unnoticed. Add fields of a newer Kubernetes to the
    list."""
    schemas = json.loads(api.kubectl("get", "--raw", "/openapi/v3/api/v1"))["components"]["schemas"]
    named = {
        "PodSpec": [*POD_SPEC_FIELDS, "containers", "restartPolicy", "activeDeadlineSeconds", "hostname", "subdomain"],
        "Container": [*CONTAINER_FIELDS, "name", "env", "restartPolicy"],
    }
    named |= {"EnvVar": [*ENV_FIELDS, "name"], "Volume": [*VOLUME_SOURCES, "name", "persistentVolumeClaim"]}
    for kind, names in named.items():
        assert set(schemas[f"io.k8s.api.core.v1.{kind}"]["properties"]) <= set(names)


def test_the_crd_is_small_enough_for_client_side_apply(api: ControlPlane) -> None:
    """The last-applied annotation holds the whole CRD, and annotations are limited to 256 KiB."""
    assert len(json.dumps(yaml.safe_load(CRD.read_text(encoding="utf-8")))) < 200_000
    api.kubectl("apply", "--dry-run=server", "--filename", str(CRD))
