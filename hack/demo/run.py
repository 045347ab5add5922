"""Runs the demo: sets up cluster, images and chart, then runs the job and follows it to its end."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from elasticjob_operator.names import LABEL_INDEX, worker_selector
from rich.console import Console

from hack.demo.follow import Follower
from hack.demo.observations import PodDeleted
from hack.demo.show import Screen, print_table
from hack.demo.timeline import Timeline, observe, problem
from hack.drivers import ClusterDriver, KubeError, adapt, collect_logs, install_chart, uninstall_chart
from hack.images import build
from hack.images.recipe import ROOT
from hack.steps import Steps, concurrently

MANIFEST = ROOT / "examples" / "digits" / "elasticjob.yaml"
LOGS = ROOT / ".cluster" / "demo"
NAMESPACE = "default"
DEFAULT_STEPS = 600
"""Default of --steps in examples/digits/train.py."""


def set_up(driver: ClusterDriver) -> None:
    """Starts the cluster and builds the images in parallel, then loads the images and installs the chart."""
    images: dict[str, Path] = {}
    concurrently(driver.up, lambda: images.update(build(["operator", "runtime", "trainer"])))
    driver.load_images(images)
    with Steps() as steps, steps.step("Install the chart with Helm", "the operator and the ElasticJob CRD", 5):
        install_chart(driver, images)


def take_down(driver: ClusterDriver) -> None:
    """Removes the demo: the whole cluster if we created it, otherwise the job and the chart."""
    if driver.name == "current":
        try:
            _delete_job(driver, yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))["metadata"]["name"])
        except KubeError as error:  # the CRD is not installed, so there is no job either
            print(error)
        uninstall_chart(driver)
    driver.down()


def run(
    driver: ClusterDriver, delete_at: int | None = None, time_limit: float = 300.0, manifest: Path = MANIFEST
) -> int:
    """Runs the whole demo. Returns the exit code: 0 only if a pod was deleted, training resumed at full size, and the
    final accuracy is good."""
    set_up(driver)
    console = Console(highlight=False)
    text = adapt(manifest.read_text(encoding="utf-8"), driver)
    job = yaml.safe_load(text)
    name = job["metadata"]["name"]
    _delete_job(driver, name)
    console.print(f"\nkubectl apply -f {manifest.relative_to(ROOT)}", markup=False)
    timeline = Timeline(
        applied_at=time.time(),
        full=job["spec"]["workers"]["replicas"],
        delete_at=delete_at or steps_of(job) // 2,
    )
    driver.kubectl.apply(text, NAMESPACE)
    with Follower(driver, name, NAMESPACE) as follower, Screen(console) as screen:
        timeline = _follow(driver, follower, screen, timeline, name, timeline.applied_at + time_limit)
    print_table(console, timeline)
    wrong = problem(timeline)
    if wrong:
        console.print(f"[bold red]The demo failed:[/] {wrong}", soft_wrap=True)
        print_logs(console, driver)
        return 1
    console.print(f"[bold green]The trained model recognizes {timeline.final_accuracy:.1%} of the test images.[/]")
    return 0


def steps_of(job: Mapping[str, Any]) -> int:
    """Number of steps that a digits job trains: `--steps` of its container."""
    container = job["spec"]["workers"]["template"]["spec"]["containers"][0]
    words = " ".join([*container.get("command", []), *container.get("args", [])])
    found = re.search(r"--steps[= ](\d+)", words)
    return int(found[1]) if found else DEFAULT_STEPS


def print_logs(console: Console, driver: ClusterDriver) -> None:
    """Collects logs, Events and objects, and prints where they are."""
    files = collect_logs(driver, LOGS, NAMESPACE)
    console.print("Logs, Events and objects:", style="bold")
    for file in files:
        console.print(f"  {file}", soft_wrap=True, markup=False)


def _follow(
    driver: ClusterDriver, follower: Follower, screen: Screen, timeline: Timeline, job: str, end: float
) -> Timeline:
    while not timeline.is_over and time.time() < end:
        seen = follower.next(timeout=0.25)
        if seen:
            timeline = observe(timeline, *seen)
        if timeline.should_delete_pod:
            pod = _pod_to_delete(driver, job)
            asked_at = time.time()
            driver.kubectl.run("delete", "pod", pod, "--namespace", NAMESPACE, "--wait=false")
            timeline = observe(timeline, asked_at, PodDeleted(pod))
        screen.update(timeline, time.time())
    return timeline


def _pod_to_delete(driver: ClusterDriver, job: str) -> str:
    """The worker pod with the highest index. Members that joined first have the lowest ranks, so it is probably not
    rank 0's, whose log the demo follows."""
    pods = driver.kubectl.items("pods", NAMESPACE, worker_selector(job))
    names = {int(pod["metadata"]["labels"].get(LABEL_INDEX, 0)): pod["metadata"]["name"] for pod in pods}
    return str(names[max(names)])


def _delete_job(driver: ClusterDriver, name: str) -> None:
    """Deletes the job of an earlier demo, so that the new one starts from scratch."""
    driver.kubectl.delete("elasticjobs.elasticjob.dev", name, NAMESPACE, timeout=90)
