"""watch and doctor: line by line, full screen in a pseudo-terminal, and a thousand worker pods."""

from __future__ import annotations

import os
import pty
import resource
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fcntl import ioctl
from pathlib import Path

import pytest
from elasticjob import ElasticJobClient
from elasticjob.errors import Exit
from elasticjob.live.app import WatchApp
from elasticjob.sdk.watch import JobWatch
from textual.widgets import DataTable, Static

from hack.support import eventually
from tests.integration.client.conftest import Operator, Result
from tests.integration.client.kubelet import NODE
from tests.integration.client.test_logs import Start, lines_of
from tests.integration.operator.kube import Kube, Namespace

Cli = Callable[..., Result]
SECONDS = 8


def test_changes_are_lines_until_the_job_has_finished(
    start: Start, submitted: str, operator: Operator, ns: Namespace
) -> None:
    process = start("watch", submitted, "--plain")
    lines = lines_of(process)
    assert "Pending" in lines.get(timeout=60)
    operator.worker(submitted, 0, running=False)
    assert "bert-worker-0 created" in lines.get(timeout=60)
    ns.run("bert-worker-0")
    assert "bert-worker-0 is ready" in lines.get(timeout=60)
    operator.conditions(submitted, "Failed", reason="MaxRestartsExceeded", message="Failed 11 times.")
    assert "failed: Failed 11 times." in lines.get(timeout=60)
    assert process.wait(60) == Exit.JOB_FAILED


def test_a_job_deleted_while_watched_ends_the_watch(start: Start, submitted: str, ns: Namespace) -> None:
    process = start("watch", submitted)
    lines = lines_of(process)
    assert lines.get(timeout=60)
    ns.delete("elasticjobs", submitted)
    assert "the job was deleted" in lines.get(timeout=60)
    assert process.wait(60) == Exit.DELETED


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60)])
def test_the_full_screen_shows_the_job_and_q_quits(
    submitted: str, operator: Operator, control_plane: Path, ns: Namespace, columns: int, rows: int
) -> None:
    operator.conditions(submitted, "Accepted", "Running")
    operator.worker(submitted, 0)
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticjob", "watch", submitted, "-n", ns.name],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "KUBECONFIG": str(control_plane), "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        shown = b""
        while b"bert-worker-0" not in shown:
            shown += os.read(ours, 65536)
        assert f"{ns.name}/bert".encode() in shown
        os.write(ours, b"q")
        while True:
            try:
                if not os.read(ours, 65536):
                    break
            except OSError:  # the other end is closed
                break
        assert process.wait(60) == Exit.OK
    finally:
        process.kill()
        process.wait()
        os.close(ours)


async def test_the_screen_follows_the_job(
    client: ElasticJobClient, submitted: str, operator: Operator, ns: Namespace
) -> None:
    with JobWatch(client.cluster, submitted, workers=True) as watch:
        app = WatchApp(client, watch)
        async with app.run_test(size=(80, 24)) as pilot:
            operator.worker(submitted, 0, running=False)
            operator.conditions(submitted, Running="ImageUnavailable", message="Cannot pull the image.")
            operator.status(submitted, progress={"step": 5, "stepsPerSecond": 1.5})

            async def until(condition: Callable[[], bool]) -> None:
                for _ in range(600):
                    await pilot.pause(0.1)
                    if condition():
                        return
                raise AssertionError("not within a minute")

            await until(lambda: app.query_one("#workers", DataTable).row_count == 1)
            await until(lambda: "Cannot pull the image." in str(app.query_one("#obstacles", Static).content))
            await until(lambda: "step 5, 1.5 steps/s" in str(app.query_one("#facts", Static).content))
            ns.remove("bert-worker-0")
            await until(lambda: app.query_one("#workers", DataTable).row_count == 0)
            await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.timeout(600)
async def test_a_thousand_worker_pods_cost_little(
    client: ElasticJobClient, submitted: str, operator: Operator, ns: Namespace
) -> None:
    """Measured: the CPU time of the view while the job reports progress once a second."""
    uid = ns.job(submitted)["metadata"]["uid"]

    def create(index: int) -> None:
        labels = {
            "elasticjob.dev/job-name": submitted,
            "elasticjob.dev/component": "worker",
            "elasticjob.dev/worker-index": str(index),
        }
        owner = {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "name": submitted, "uid": uid}
        metadata = {"name": f"bert-worker-{index}", "labels": labels, "ownerReferences": [owner]}
        spec = {"containers": [{"name": "trainer", "image": "none"}], "nodeName": NODE}
        ns.create("pods", {"metadata": metadata, "spec": spec})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(1000)))
    with JobWatch(client.cluster, submitted, workers=True) as watch:
        app = WatchApp(client, watch)
        async with app.run_test(size=(200, 60)) as pilot:
            for _ in range(600):
                await pilot.pause(0.1)
                if app.query_one("#workers", DataTable).row_count == 1000:
                    break
            before = resource.getrusage(resource.RUSAGE_SELF)
            for step in range(SECONDS):
                operator.status(submitted, progress={"step": step, "stepsPerSecond": 2.5})
                await pilot.pause(1)
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(
                f"CPU of the view with 1,000 worker pods: {used / SECONDS:.1%} of a core, this test's requests included"
            )
            assert app.query_one("#workers", DataTable).row_count == 1000
    assert used / SECONDS < 0.25, "far more than the 5 % that are promised, on a busy machine"


def test_doctor_finds_that_there_is_no_operator(cli: Cli, submitted: str) -> None:
    result = cli("doctor", submitted)
    assert result.code == Exit.ERROR
    assert "✓ CustomResourceDefinition elasticjob.dev/v1alpha1" in result.out
    assert "✗ There is no operator" in result.out
    assert "You have all rights" in result.out


def test_doctor_sees_an_operator(cli: Cli, kube: Kube, ns: Namespace) -> None:
    labels = {"app.kubernetes.io/name": "elasticjob", "app.kubernetes.io/component": "operator"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "none"}]}}
    path = f"/apis/apps/v1/namespaces/{ns.name}/deployments"
    metadata = {"name": "ej", "labels": {**labels, "app.kubernetes.io/version": "0.0.1"}}
    kube.call("POST", path, {"metadata": metadata, "spec": {"selector": {"matchLabels": labels}, "template": template}})
    try:
        assert f"The operator {ns.name}/ej is not ready" in cli("doctor").out
        status = {"status": {"replicas": 1, "readyReplicas": 1}}
        kube.call("PATCH", f"{path}/ej/status", status, "application/merge-patch+json")
        eventually(lambda: "Operator 0.0.1 is ready" in cli("doctor").out)
        assert "is older than this client" in cli("doctor").out.replace("\n  ", " ")
    finally:
        kube.call("DELETE", f"{path}/ej")
