"""submit, list, get, describe, scale, suspend, resume, delete and wait."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from elasticjob import ElasticJobClient, JobFailedError
from elasticjob.cluster.watching import FIRST_PAGE
from elasticjob.errors import Exit

from hack.support import eventually
from tests.integration.client.conftest import Operator, Result
from tests.integration.manifests import changed
from tests.integration.operator.kube import Kube, Namespace

Cli = Callable[..., Result]


def test_a_submitted_job_is_what_the_flags_say(cli: Cli, ns: Namespace) -> None:
    flags = ["--image", "train:1", "--workers", "2:4", "--gpus", "8", "--checkpoint-claim", "ckpt", "-e", "LR=0.1"]
    command = ("--", "python", "train.py", "--lr", "0.1")
    dry = cli("submit", "bert", *flags, "--dry-run", "-o", "yaml", *command)
    assert ns.get("elasticjobs", "bert") is None
    result = cli("submit", "bert", *flags, *command)
    assert result.code == Exit.OK, result.err
    spec = ns.job("bert")["spec"]
    ns.create("elasticjobs", changed({"metadata.name": "printed"}, yaml.safe_load(dry.out)))
    assert ns.job("printed")["spec"] == spec
    container = spec["workers"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "train.py", "--lr", "0.1"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert container["env"] == [{"name": "LR", "value": "0.1"}]
    assert [spec["workers"][key] for key in ("minReplicas", "maxReplicas", "replicas")] == [2, 4, 4]
    assert spec["checkpoint"]["volume"] == {"persistentVolumeClaim": {"claimName": "ckpt"}}


def test_a_second_job_of_the_same_name_is_not_created(cli: Cli, submitted: str) -> None:
    result = cli("submit", submitted, "--image", "other", "--", "python", "train.py")
    assert result.code == Exit.ERROR
    assert "There is a job bert in namespace" in result.err
    assert "elasticjob delete bert" in result.err


def test_a_list_is_a_table(cli: Cli, submitted: str, operator: Operator) -> None:
    assert "Pending" in cli("list").out
    operator.conditions(submitted, "Accepted", "Running")
    progress = {"step": 1200, "stepsPerSecond": 3.25}
    operator.status(submitted, workers="3/3", readyReplicas=3, desiredReplicas=3, progress=progress)
    titles, row = cli("list").out.splitlines()
    assert titles.split() == ["NAME", "STATUS", "WORKERS", "STEP", "RESTARTS", "AGE"]
    assert row.split()[:5] == ["bert", "Running", "3/3", "1200", "0"]
    wide = cli("list", "-o", "wide").out
    assert "train:1" in wide
    assert "3.25" in wide
    assert cli("list", "--no-headers").out.split()[0] == "bert"


def test_a_list_moves_no_whole_jobs(cli: Cli, client: ElasticJobClient, submitted: str) -> None:
    ((job,),) = client.listed()
    assert "spec" not in job
    assert job["metadata"]["name"] == submitted
    assert [*client.listed(selector="team=nlp")] == []
    assert cli("get", "brt").err.endswith("Did you mean bert?\n")


def beside(job: Mapping[str, Any], **progress: Any) -> dict[str, Any]:
    """An ElasticJobProgress, as the operator writes it."""
    owner = {"apiVersion": job["apiVersion"], "kind": "ElasticJob", "name": job["metadata"]["name"]}
    metadata = {"name": job["metadata"]["name"], "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}]}
    return {"apiVersion": job["apiVersion"], "kind": "ElasticJobProgress", "metadata": metadata, "progress": progress}


def test_progress_is_read_beside_the_job_where_it_is_newer(
    cli: Cli, ns: Namespace, kube: Kube, submitted: str, operator: Operator, start: Callable[..., subprocess.Popen[str]]
) -> None:
    operator.conditions(submitted, "Accepted", "Running")
    operator.status(submitted, workers="3/3", readyReplicas=3, desiredReplicas=3)
    watching = start("watch", submitted, "--plain")
    waiting = start("wait", submitted, "--for", "finished", "--timeout", "100s")
    assert watching.stdout is not None
    assert "Running" in watching.stdout.readline()
    path = f"/apis/elasticjob.dev/v1alpha1/namespaces/{ns.name}/elasticjobprogresses"
    kube.call("POST", path, beside(ns.job(submitted), step=1450, observedAt="2026-01-01T12:00:40Z"))
    eventually(lambda: "1450" in watching.stdout.readline(), what="the step beside the job")  # type: ignore[union-attr]
    operator.status(submitted, progress={"step": 1200, "observedAt": "2026-01-01T12:00:00Z"})
    assert cli("list").out.splitlines()[1].split()[3] == "1450"
    assert cli("get", submitted).out.splitlines()[1].split()[3] == "1450"
    assert "step 1450" in cli("describe", submitted).out
    operator.status(submitted, progress={"step": 1500, "observedAt": "2026-01-01T12:00:50Z"})
    assert cli("list").out.splitlines()[1].split()[3] == "1500"
    operator.conditions(submitted, "Succeeded")
    assert waiting.wait(60) == Exit.OK


def test_a_large_list_comes_page_by_page_in_one_table(
    cli: Cli, ns: Namespace, client: ElasticJobClient, submitted: str, kube: Kube
) -> None:
    body = ns.job(submitted)
    jobs = f"/apis/elasticjob.dev/v1alpha1/namespaces/{ns.name}/elasticjobs"
    for number in range(FIRST_PAGE + 20):
        job = kube.call(
            "POST",
            jobs,
            {
                **{key: body[key] for key in ("apiVersion", "kind", "spec")},
                "metadata": {"name": f"job-{number:03}" + "-long" * (number >= FIRST_PAGE)},
            },
        )
        progress = beside(job, step=number, observedAt="2026-01-01T12:00:40Z")
        kube.call("POST", jobs.replace("elasticjobs", "elasticjobprogresses"), progress)
    assert [len(page) for page in client.listed()] == [FIRST_PAGE, 21]
    titles, *rows = cli("list").out.splitlines()
    assert len(rows) == FIRST_PAGE + 21
    assert {row.split()[0]: row.split()[-3] for row in rows if "job-" in row}["job-104-long"] == "104"
    assert sum("NAME" in line for line in (titles, *rows)) == 1
    assert len(cli("list", "-o", "name").out.splitlines()) == FIRST_PAGE + 21


def test_get_prints_names_and_documents_as_they_change(
    start: Callable[..., subprocess.Popen[str]], submitted: str, cli: Cli
) -> None:
    process = start("get", "-w", "-o", "name")
    assert process.stdout is not None
    assert process.stdout.readline() == f"elasticjob.elasticjob.dev/{submitted}\n"
    cli("submit", "gpt", "--image", "train:1", "--", "python", "train.py")
    assert process.stdout.readline() == "elasticjob.elasticjob.dev/gpt\n"
    documents = start("get", "-w", "-o", "yaml").stdout
    assert documents is not None
    eventually(lambda: documents.readline() == "---\n")
    assert documents.readline().startswith("apiVersion:")
    assert cli("get", "nothing", "-w").code == Exit.NOT_FOUND


def test_a_user_acts_as_another(cli: Cli, control_plane: Path, ns: Namespace) -> None:
    result = cli("list", "--as", "ann", "--as-group", "ml")
    assert result.code == Exit.FORBIDDEN
    assert "User ann has no right to list elasticjobs" in result.err
    other = ElasticJobClient(ns.name, kubeconfig=str(control_plane), as_user="eve", as_groups=["system:masters"])
    assert other.list() == []


def test_scaling_stays_within_the_limits(cli: Cli, submitted: str, ns: Namespace) -> None:
    assert cli("scale", submitted, "2").out == "bert: 3 -> 2 worker pods\n"
    assert ns.job(submitted)["spec"]["workers"]["replicas"] == 2
    result = cli("scale", submitted, "9")
    assert result.code == Exit.USAGE
    assert "bert trains with 2 to 4 worker pods, not with 9" in result.err
    assert '{"maxReplicas": 9}' in result.err


def test_a_suspended_job_is_resumed(cli: Cli, submitted: str, ns: Namespace) -> None:
    assert cli("suspend", submitted).code == Exit.OK
    assert ns.job(submitted)["spec"]["suspend"] is True
    assert cli("resume", submitted).code == Exit.OK
    assert ns.job(submitted)["spec"]["suspend"] is False


def test_delete_waits_until_the_worker_pods_are_gone(
    cli: Cli, submitted: str, operator: Operator, ns: Namespace, kubelet: object
) -> None:
    assert kubelet
    operator.worker(submitted, 0)

    def kubelet_removes_it() -> None:
        eventually(lambda: "deletionTimestamp" in ns.all("pods")["bert-worker-0"]["metadata"], what="it is deleted")
        ns.remove("bert-worker-0")

    remover = threading.Thread(target=kubelet_removes_it)
    remover.start()
    result = cli("delete", submitted)
    remover.join()
    assert result.code == Exit.OK, result.err
    assert ns.get("elasticjobs", submitted) is None


def test_a_name_that_is_not_there_keeps_no_other_from_its_turn(cli: Cli, submitted: str, ns: Namespace) -> None:
    shown = cli("get", "typo", submitted, "--no-headers")
    assert (shown.code, shown.out.split()[0]) == (Exit.NOT_FOUND, submitted)
    deleted = cli("delete", "typo", submitted)
    assert (deleted.code, deleted.out) == (Exit.NOT_FOUND, f"{submitted} is deleted.\n")
    assert "There is no ElasticJob typo" in deleted.err
    assert ns.get("elasticjobs", submitted) is None


def test_jobs_are_deleted_at_the_same_time(cli: Cli, ns: Namespace) -> None:
    """The second does not wait until the first is gone."""
    for name in ("one", "two"):
        cli("submit", name, "--image", "train:1", "--", "python", "train.py")
        ns.patch("elasticjobs", name, {"metadata": {"finalizers": ["example.com/hold"]}})
    assert cli("delete", "one", "two", "--timeout", "1s").code == Exit.TIMEOUT
    assert all("deletionTimestamp" in ns.job(name)["metadata"] for name in ("one", "two"))
    for name in ("one", "two"):
        ns.patch("elasticjobs", name, {"metadata": {"finalizers": []}})


def test_resume_of_a_job_that_has_succeeded_meanwhile_is_no_failure(
    start: Callable[..., subprocess.Popen[str]], cli: Cli, submitted: str, operator: Operator, ns: Namespace
) -> None:
    cli("suspend", submitted)
    process = start("resume", submitted, "--wait")
    eventually(lambda: ns.job(submitted)["spec"]["suspend"] is False)
    operator.conditions(submitted, "Succeeded")
    assert process.wait(60) == Exit.OK


def test_a_job_that_does_not_start_in_time_is_followed_no_longer(cli: Cli) -> None:
    words = ["bert", "--image", "train:1", "--follow", "--timeout", "1s", "--", "python", "train.py"]
    assert cli("submit", *words).code == Exit.TIMEOUT


def test_wait_fails_with_the_job_and_says_why(cli: Cli, submitted: str, operator: Operator) -> None:
    operator.conditions(submitted, "Failed", reason="MaxRestartsExceeded", message="Failed 11 times.")
    operator.status(submitted, lastFailure={"worker": "bert-worker-1", "message": "RuntimeError: no data"})
    result = cli("wait", submitted)
    assert result.code == Exit.JOB_FAILED
    assert "Failed 11 times." in result.err
    assert "RuntimeError: no data" in result.err


def test_wait_ends_when_the_job_is_deleted(
    start: Callable[..., subprocess.Popen[str]], submitted: str, ns: Namespace, tmp_path: Path
) -> None:
    process = start("wait", submitted)
    eventually(lambda: "Waiting for bert:" in (tmp_path / "stderr-0").read_text())
    ns.delete("elasticjobs", submitted)
    assert process.wait(60) == Exit.DELETED


def test_a_field_that_the_cluster_does_not_know_is_an_error(cli: Cli, kube: Kube, ns: Namespace) -> None:
    """Of an older CRD; a job without it would be another job."""
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.elasticjob.dev"
    before = kube.call("GET", crd)
    version = json.loads(json.dumps(before["spec"]["versions"]))
    spec = version[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["lifecycle"]["properties"]["ttlSecondsAfterFinished"]
    try:
        kube.call("PATCH", crd, {"spec": {"versions": version}}, "application/merge-patch+json")
        flags = ["--image", "train:1", "--ttl", "1h", "--", "python", "train.py"]

        def rejected() -> bool:
            result = cli("submit", "bert", *flags)
            if result.code == Exit.OK:
                cli("delete", "bert", "--no-wait")
            else:
                assert 'unknown field "spec.lifecycle.ttlSecondsAfterFinished"' in result.err
                assert "upgrade the operator" in result.err
            return result.code == Exit.ERROR

        eventually(rejected, what="the API server uses the older CRD")
        assert ns.get("elasticjobs", "bert") is None
    finally:
        newest = kube.call("GET", crd)["metadata"]["resourceVersion"]
        body = {**before, "metadata": {**before["metadata"], "resourceVersion": newest}}
        kube.call("PUT", crd, body)


def test_the_sdk_says_how_a_job_failed(client: ElasticJobClient, operator: Operator) -> None:
    job = client.submit("bert", image="train:1", command="python train.py --lr 0.1", workers=(2, 4))
    assert job.spec.workers.min_replicas == 2
    operator.conditions("bert", "Failed", message="Out of memory.")
    with pytest.raises(JobFailedError, match="Out of memory"):
        job.wait(timeout=30)
    assert job.refresh().summary == "Failed"
    assert "bert" in client.list()._repr_html_()
