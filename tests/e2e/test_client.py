"""The command line on a real cluster: what a user does from submitting a job to its end."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from elasticjob import ElasticJobClient, train

from hack.drivers import ClusterDriver
from hack.images import build
from tests.e2e.jobs import Job

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
ARGUMENTS = ("--steps=400", "--step-seconds=0.1", "--checkpoint-every=5", "--print-every=5")


@pytest.fixture
def cli(cluster: ClusterDriver) -> Cli:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "elasticjob", *words],
            env=environment(cluster),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    return call


def environment(cluster: ClusterDriver) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(cluster.kubectl.kubeconfig or os.environ.get("KUBECONFIG", ""))}


@pytest.fixture
def followed(cluster: ClusterDriver) -> Iterator[Callable[[str], queue.Queue[str]]]:
    """The lines of `elasticjob logs --follow` as they come."""
    started: list[subprocess.Popen[str]] = []

    def follow(name: str) -> queue.Queue[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticjob", "logs", name, "--follow"],
            env=environment(cluster),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        output = process.stdout

        def read() -> None:
            for line in output:
                lines.put(line.rstrip("\n"))
            lines.put(f"exit code {process.wait()}")

        threading.Thread(target=read, daemon=True).start()
        return lines

    yield follow
    for process in started:
        process.kill()
        process.wait()


def test_a_job_is_followed_from_its_submission_through_a_lost_pod_and_a_resize_to_its_end(
    cluster: ClusterDriver, cli: Cli, followed: Callable[[str], queue.Queue[str]], tmp_path: Path
) -> None:
    job = Job(cluster, "by-hand", replicas=2, least=1, most=3, arguments=ARGUMENTS)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job.manifest))
    try:
        submitted = cli("submit", "-f", str(path))
        assert submitted.returncode == 0, submitted.stderr
        job.trains(2)
        lines, seen = followed("by-hand"), list[str]()

        def line_with(pattern: str) -> str:
            while True:
                seen.append(lines.get(timeout=120))
                if re.search(pattern, seen[-1]):
                    return seen[-1]

        line_with(r"worker-\d \| step=")
        victim = job.pod_of_rank_zero()
        cluster.kubectl.delete("pod", victim, wait=False)
        index = victim.split("-")[-2]
        line_with(rf"worker-{index} \| .*(elasticrun|runtime)")  # the new pod's first lines, in the same log
        scaled = cli("scale", "by-hand", "3")
        assert scaled.stdout == "by-hand: 2 -> 3 worker pods\n", scaled.stderr
        line_with(r"worker-2 \| ")
        waited = cli("wait", "by-hand", "--timeout", "200s")
        assert waited.returncode == 0, waited.stderr
        assert line_with("exit code") == "exit code 0", "the log ends with the job"
        assert any("finished step=400" in line for line in seen)
        page = cli("describe", "by-hand").stdout
        assert "Succeeded" in page
        assert "MemberLost" in page or "MemberLeft" in page, "the history has outlived the pods"
        assert cli("plot", "by-hand", "--file", str(tmp_path / "report.html")).returncode == 0
        assert "✗" not in cli("doctor", "by-hand").stdout
    finally:
        cli("delete", "by-hand")
    assert not job.exists


def add_up(steps: int) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.zeros(1)
    for _ in range(steps):
        one = torch.ones(1)
        dist.all_reduce(one)
        total += one
    print(f"total={total.item():.0f} rank={dist.get_rank()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.nightly
def test_a_function_trains_in_an_image_that_never_heard_of_us(cluster: ClusterDriver) -> None:
    cluster.load_images(build(["plain"]))
    kubeconfig = cluster.kubectl.kubeconfig
    client = ElasticJobClient("default", kubeconfig=str(kubeconfig) if kubeconfig else None)
    job = train(
        add_up,
        {"steps": 10},
        image=cluster.image("plain"),
        image_pull_policy=cluster.pull_policy,
        workers=2,
        procs_per_worker=1,
        client=client,
    )
    try:
        job.wait(timeout=180)
        lines = list(job.logs())
        assert sorted(line.split("total=")[1] for line in lines if "total=" in line) == ["20 rank=0", "20 rank=1"]
        assert ["total=20 rank=0" in line for line in job.logs(rank=0) if "total=" in line] == [True]
    finally:
        job.delete()
