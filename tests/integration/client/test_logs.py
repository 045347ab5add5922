"""Logs of several worker pods: merged, and followed through replaced pods and cut connections."""

from __future__ import annotations

import datetime
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from elasticjob.errors import Exit

from hack.support import eventually
from tests.integration.client.conftest import Operator, Result
from tests.integration.client.kubelet import Kubelet
from tests.integration.operator.conftest import rfc3339
from tests.integration.operator.kube import Namespace

Cli = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]
Followed = tuple["subprocess.Popen[str]", "queue.Queue[str]"]
"""A command, and the lines of its output."""
NOW = datetime.datetime.now(datetime.timezone.utc)


@pytest.fixture
def two_workers(submitted: str, operator: Operator, kubelet: Kubelet) -> str:
    assert kubelet
    operator.conditions(submitted, "Accepted", "Running")
    for index in range(2):
        operator.worker(submitted, index)
    return submitted


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str]:
    """The lines of its output as they come."""
    found: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    output = process.stdout

    def read() -> None:
        for line in output:
            found.put(line.rstrip("\n"))

    threading.Thread(target=read, daemon=True).start()
    return found


@pytest.fixture
def followed(start: Start, two_workers: str, kubelet: Kubelet, ns: Namespace) -> Followed:
    """`logs --follow`, which has shown one line of worker pod 0."""
    process = start("logs", two_workers, "--follow")
    lines = lines_of(process)
    kubelet.logs.write(ns.name, "bert-worker-0", "one")
    assert lines.get(timeout=60) == "worker-0 | one"
    return process, lines


def test_lines_of_all_worker_pods_are_in_the_order_of_their_times(
    cli: Cli, two_workers: str, kubelet: Kubelet, ns: Namespace
) -> None:
    for seconds, index in ((1, 0), (2, 1), (3, 0)):
        at = NOW + datetime.timedelta(seconds=seconds)
        kubelet.logs.write(ns.name, f"bert-worker-{index}", f"step {seconds}", at)
    expected = ["worker-0 | step 1", "worker-1 | step 2", "worker-0 | step 3"]
    assert cli("logs", two_workers).out.splitlines() == expected
    assert cli("logs", two_workers, "--rank", "1").out == "step 2\n"
    assert cli("logs", two_workers, "--tail", "1").out.splitlines() == expected[1:]


def test_followed_worker_pods_begin_with_their_last_lines(
    start: Start, two_workers: str, kubelet: Kubelet, ns: Namespace, operator: Operator
) -> None:
    """Those that are there at the start; of a worker pod that comes later, nothing is left out."""
    for index in range(2):
        for step in (1, 2, 3):
            kubelet.logs.write(ns.name, f"bert-worker-{index}", f"step {step}")
    lines = lines_of(start("logs", two_workers, "--follow", "--tail", "1"))
    assert {lines.get(timeout=60), lines.get(timeout=60)} == {"worker-0 | step 3", "worker-1 | step 3"}
    for step in (1, 2):
        kubelet.logs.write(ns.name, "bert-worker-2", f"step {step}")
    operator.worker(two_workers, 2)
    assert [lines.get(timeout=60), lines.get(timeout=60)] == ["worker-2 | step 1", "worker-2 | step 2"]


def test_a_clock_that_is_behind_silences_no_other_worker_pod(
    start: Start, two_workers: str, kubelet: Kubelet, ns: Namespace
) -> None:
    stop, behind = threading.Event(), datetime.timedelta(minutes=10)

    def write() -> None:
        while not stop.wait(0.05):
            kubelet.logs.write(ns.name, "bert-worker-0", "old", datetime.datetime.now(datetime.timezone.utc) - behind)

    writer = threading.Thread(target=write)
    lines = lines_of(start("logs", two_workers, "--follow"))
    writer.start()
    try:
        assert lines.get(timeout=60) == "worker-0 | old"
        kubelet.logs.write(ns.name, "bert-worker-1", "new")
        eventually(lambda: "worker-1 | new" in list(lines.queue), what="the line of the other worker pod")
    finally:
        stop.set()
        writer.join()


def test_a_log_that_cannot_be_read_is_said(cli: Cli, two_workers: str, kubelet: Kubelet, ns: Namespace) -> None:
    """After the lines of the others."""
    kubelet.logs.write(ns.name, "bert-worker-0", "step 1")
    kubelet.logs.broken.add((ns.name, "bert-worker-1"))
    result = cli("logs", two_workers)
    assert (result.code, result.out) == (Exit.UNREACHABLE, "worker-0 | step 1\n")
    assert "cannot answer now" in result.err


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_jobs_with_a_label_are_read_together(
    cli: Cli, submitted: str, operator: Operator, kubelet: Kubelet, ns: Namespace, follow: list[str]
) -> None:
    for name in ("one", "two"):
        cli("submit", name, "--image", "train:1", "--label", "team=nlp", "--", "python", "train.py")
        operator.worker(name, 0)
        kubelet.logs.write(ns.name, f"{name}-worker-0", f"step of {name}")
        operator.conditions(name, "Succeeded")
        if follow:
            kubelet.logs.end(ns.name, f"{name}-worker-0")
            ns.end(f"{name}-worker-0", 0, at=rfc3339())
    operator.worker(submitted, 0)
    kubelet.logs.write(ns.name, "bert-worker-0", "step of bert")
    result = cli("logs", "-l", "team=nlp", *follow)
    assert result.code == Exit.OK, result.err
    assert sorted(result.out.splitlines()) == ["one-worker-0 | step of one", "two-worker-0 | step of two"]
    plain = cli("logs", "-l", "team=nlp", "--no-prefix", *follow)
    assert sorted(plain.out.splitlines()) == ["step of one", "step of two"]
    assert "No job in namespace" in cli("logs", "-l", "team=vision").err


def test_another_container_and_the_one_before_are_asked_for(cli: Cli, two_workers: str, kubelet: Kubelet) -> None:
    kubelet.logs.requests.clear()
    cli("logs", two_workers, "--worker", "0", "-p")
    assert any("previous=true" in request for request in kubelet.logs.requests)
    missing = cli("logs", two_workers, "--worker", "0", "-c", "other")
    assert (missing.code, "container other is not valid" in missing.err) == (Exit.ERROR, True)


def test_a_job_without_worker_pods_has_no_log(cli: Cli, submitted: str) -> None:
    result = cli("logs", submitted)
    assert result.code == Exit.NOT_FOUND
    assert "bert has no worker pods, so there is no log." in result.err


def test_following_goes_on_with_the_replacement_of_a_worker_pod(
    start: Start, two_workers: str, kubelet: Kubelet, ns: Namespace, operator: Operator
) -> None:
    process = start("logs", two_workers, "--follow")
    lines = lines_of(process)
    kubelet.logs.write(ns.name, "bert-worker-1", "before")
    assert lines.get(timeout=60) == "worker-1 | before"
    kubelet.logs.end(ns.name, "bert-worker-1")
    ns.remove("bert-worker-1")
    with kubelet.logs.changed:
        kubelet.logs.lines[ns.name, "bert-worker-1"].clear()
        kubelet.logs.ended.discard((ns.name, "bert-worker-1"))
    operator.worker(two_workers, 1)
    kubelet.logs.write(ns.name, "bert-worker-1", "after")
    assert lines.get(timeout=60) == "worker-1 | after"
    for index in range(2):
        kubelet.logs.end(ns.name, f"bert-worker-{index}")
        ns.end(f"bert-worker-{index}", 0, at="2026-01-01T00:00:00Z")
    operator.conditions(two_workers, "Succeeded")
    assert process.wait(60) == Exit.OK


def test_a_cut_connection_neither_repeats_nor_loses_lines(followed: Followed, kubelet: Kubelet, ns: Namespace) -> None:
    _, lines = followed
    kubelet.logs.cut_connections()
    kubelet.logs.write(ns.name, "bert-worker-0", "two")
    assert lines.get(timeout=60) == "worker-0 | two"
    assert lines.empty()


def test_ctrl_c_ends_the_log_without_a_traceback(followed: Followed, tmp_path: Path) -> None:
    process, _ = followed
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == Exit.INTERRUPTED
    assert (tmp_path / "stderr-0").read_text() == ""


def test_a_job_deleted_while_followed_is_said(
    followed: Followed, kubelet: Kubelet, ns: Namespace, tmp_path: Path
) -> None:
    process, _ = followed
    for index in range(2):
        kubelet.logs.end(ns.name, f"bert-worker-{index}")
        ns.remove(f"bert-worker-{index}")
    ns.delete("elasticjobs", "bert")
    assert process.wait(60) == Exit.DELETED
    assert "The job was deleted." in (tmp_path / "stderr-0").read_text()


def test_rank_0_is_followed_to_the_worker_pod_that_takes_it_over(
    start: Start, two_workers: str, kubelet: Kubelet, ns: Namespace
) -> None:
    lines = lines_of(start("logs", two_workers, "--follow", "--rank", "0"))
    kubelet.logs.write(ns.name, "bert-worker-0", "of the first")
    assert lines.get(timeout=60) == "of the first"
    ns.remove("bert-worker-0")
    eventually(lambda: "bert-worker-0" not in ns.all("pods"))
    eventually(lambda: any("bert-worker-1" in request for request in kubelet.logs.requests), what="the log of worker 1")
    kubelet.logs.write(ns.name, "bert-worker-1", "of the second")
    assert lines.get(timeout=60) == "of the second"


def test_a_replica_is_followed_to_the_worker_pods_that_it_gets(
    start: Start, two_workers: str, operator: Operator, kubelet: Kubelet, ns: Namespace
) -> None:
    ns.patch("elasticjobs", two_workers, {"spec": {"workers": {"replicaSize": 1}}})
    operator.status(two_workers, replicaWorkers=[{"replica": 1, "workers": [0]}])
    lines = lines_of(start("logs", two_workers, "--follow", "--replica", "1"))
    kubelet.logs.write(ns.name, "bert-worker-0", "of the first")
    assert lines.get(timeout=60) == "worker-0 | of the first"
    operator.status(two_workers, replicaWorkers=[{"replica": 1, "workers": [1]}])
    eventually(lambda: any("bert-worker-1" in request for request in kubelet.logs.requests), what="the log of worker 1")
    kubelet.logs.write(ns.name, "bert-worker-1", "of the second")
    assert lines.get(timeout=60) == "worker-1 | of the second"


def test_a_waiting_container_has_no_log_yet(cli: Cli, submitted: str, operator: Operator) -> None:
    operator.worker(submitted, 0, running=False)
    result = cli("logs", submitted)
    assert (result.code, result.out, result.err) == (
        Exit.OK,
        "",
        "bert-worker-0 has not started, so it has no log yet.\n",
    )


@pytest.mark.parametrize(("end", "code"), [("Succeeded", Exit.OK), ("Failed", Exit.JOB_FAILED)])
def test_a_submitted_job_is_followed_to_its_end(
    start: Start, kubelet: Kubelet, ns: Namespace, operator: Operator, end: str, code: Exit
) -> None:
    process = start("submit", "bert", "--image", "train:1", "--follow", "--", "python", "train.py")
    lines = lines_of(process)
    assert "bert is submitted to namespace" in lines.get(timeout=60)
    operator.worker("bert", 0)
    operator.status("bert", round=1, readyReplicas=1, worldSize=1)
    kubelet.logs.write(ns.name, "bert-worker-0", "step 1")
    assert lines.get(timeout=60) == "worker-0 | step 1"
    kubelet.logs.end(ns.name, "bert-worker-0")
    ns.end("bert-worker-0", 0 if end == "Succeeded" else 1, at="2026-01-01T00:00:00Z")
    operator.conditions("bert", end)
    assert process.wait(60) == code
