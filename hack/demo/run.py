"""Runs the demo: sets up cluster, images and chart, then runs the job and follows it to its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml
from elasticjob_operator.names import LABEL_INDEX, worker_selector
from rich.console import Console
from rich.markup import escape

from hack.demo.follow import Follower
from hack.demo.observations import PodDeleted
from hack.demo.timeline import Timeline, observe, problem, table
from hack.drivers import ClusterDriver, KubeError, collect_logs, install_chart, uninstall_chart
from hack.images import build
from hack.images.recipe import ROOT
from hack.steps import Steps, concurrently
from hack.timeline import Screen, print_table

EXAMPLE = ROOT / "examples" / "session"
JOB = "session"
LOGS = ROOT / ".cluster" / "demo"
NAMESPACE = "default"
HALFWAY = 500
"""The example takes 1,000 steps."""


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
            _delete_job(driver)
        except KubeError as error:  # the CRD is not installed, so there is no job either
            print(error)
        uninstall_chart(driver)
    driver.down()


def run(driver: ClusterDriver, delete_at: int = HALFWAY, time_limit: float = 300.0) -> int:
    """Runs the whole demo. Returns the exit code: 0 only if a pod was deleted, the other worker processes continued, a
    replacement joined, and no step was lost."""
    set_up(driver)
    console = Console(highlight=False)
    documents = manifests(driver.kubectl.run("kustomize", str(EXAMPLE)), driver)
    (job,) = (one for one in documents if one["kind"] == "ElasticJob")
    _delete_job(driver)
    console.print(f"\nkubectl apply -k {EXAMPLE.relative_to(ROOT)}", markup=False)
    timeline = Timeline(applied_at=time.time(), full=job["spec"]["workers"]["replicas"], delete_at=delete_at)
    driver.kubectl.apply(yaml.safe_dump_all(documents, sort_keys=False), NAMESPACE)
    with Follower(driver, JOB, NAMESPACE) as follower, Screen(console) as screen:
        timeline = _follow(driver, follower, screen, timeline, timeline.applied_at + time_limit)
    print_table(console, ("when", "what", ""), table(timeline))
    wrong = problem(timeline)
    if wrong:
        console.print(f"[bold red]The demo failed:[/] {escape(wrong)}", soft_wrap=True)
        print_logs(console, driver)
        return 1
    console.print("[bold green]A pod was lost, no other process restarted, and every step was taken.[/]")
    return 0


def manifests(built: str, driver: ClusterDriver) -> list[dict[str, Any]]:
    """What `kubectl kustomize` printed, for this cluster: our image with torch (its Python is `python3`), its volume
    for checkpoints, and what three pods may request on a small machine."""
    documents: list[dict[str, Any]] = [each for each in yaml.safe_load_all(built) if each]
    shared = {"hostPath": {"path": driver.shared_directory, "type": "Directory"}}
    for document in documents:
        if document["kind"] == "ElasticJob":
            container = document["spec"]["workers"]["template"]["spec"]["containers"][0]
            container.update(image=driver.image("trainer"), imagePullPolicy=driver.pull_policy)
            container["command"] = ["python3", *container["command"][1:]]
            container["resources"] = {"requests": {"cpu": "100m", "memory": "400Mi"}}
            document["spec"]["checkpoint"]["volume"] = driver.checkpoint_volume or shared
    return documents


def print_logs(console: Console, driver: ClusterDriver) -> None:
    """Collects logs, Events and objects, and prints where they are."""
    files = collect_logs(driver, LOGS, NAMESPACE)
    console.print("Logs, Events and objects:", style="bold")
    for file in files:
        console.print(f"  {file}", soft_wrap=True, markup=False)


def _follow(driver: ClusterDriver, follower: Follower, screen: Screen, timeline: Timeline, end: float) -> Timeline:
    said = 0
    while not timeline.is_over and time.time() < end:
        seen = follower.next(timeout=0.25)
        if seen:
            timeline = observe(timeline, *seen)
        if timeline.should_delete_pod:
            pod = _pod_to_delete(driver)
            asked_at = time.time()
            driver.kubectl.run("delete", "pod", pod.name, "--namespace", NAMESPACE, "--wait=false")
            timeline = observe(timeline, asked_at, pod)
        for entry in timeline.entries[said:]:
            screen.say(entry.time - timeline.applied_at, entry.what, entry.detail)
        said = len(timeline.entries)
        screen.now(time.time() - timeline.applied_at, timeline.view.state, timeline.view.figures)
    return timeline


def _pod_to_delete(driver: ClusterDriver) -> PodDeleted:
    """The worker pod with the highest index. Members that joined first have the lowest ranks, so it is probably not
    rank 0's, which prints the steps."""
    pods = driver.kubectl.items("pods", NAMESPACE, worker_selector(JOB))
    last = max(pods, key=lambda pod: int(pod["metadata"]["labels"].get(LABEL_INDEX, 0)))["metadata"]
    return PodDeleted(name=last["name"], uid=last["uid"])


def _delete_job(driver: ClusterDriver) -> None:
    """Deletes the job of an earlier demo, so that the new one starts from scratch."""
    driver.kubectl.delete("elasticjobs.elasticjob.dev", JOB, NAMESPACE, timeout=90)
