"""watch and doctor: line by line, and full screen in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

from elasticjob.errors import Exit

from hack.support import eventually
from tests.integration.client.conftest import Operator, Result
from tests.integration.client.test_logs import Start, lines_of
from tests.integration.operator.kube import Kube, Namespace

Cli = Callable[..., Result]


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


def test_the_full_screen_follows_the_job_until_ctrl_c(
    submitted: str, operator: Operator, control_plane: Path, ns: Namespace
) -> None:
    operator.conditions(submitted, "Accepted", "Running")
    operator.worker(submitted, 0)
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticjob", "watch", submitted, "-n", ns.name],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "KUBECONFIG": str(control_plane), "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)

    def read_until(words: bytes) -> None:
        shown = b""
        while words not in shown:
            shown += os.read(ours, 65536)

    try:
        read_until(b"bert-worker-0")
        operator.conditions(submitted, "Accepted", Running="ImageUnavailable", message="Cannot pull the image.")
        read_until(b"Cannot pull the image.")
        process.send_signal(signal.SIGINT)
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
