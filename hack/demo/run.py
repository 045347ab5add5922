"""The demo's course: cluster, images and chart; then the job, followed to its end."""

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
from hack.demo.show import Screen, print_table
from hack.demo.timeline import PodDeleted, Story, complaint, observe
from hack.drivers import ClusterDriver, KubeError, adapt, collect_logs, install_chart, uninstall_chart
from hack.images import build
from hack.images.recipe import ROOT
from hack.steps import Steps, concurrently

MANIFEST = ROOT / "examples" / "digits" / "elasticjob.yaml"
LOGS = ROOT / ".cluster" / "demo"
NAMESPACE = "default"
DEFAULT_STEPS = 600
"""Steps of examples/digits/train.py where the manifest names no other number."""


def set_up(driver: ClusterDriver) -> None:
    """Cluster and images, side by side; then the images on the cluster, and the chart. What is there already is
    kept."""
    images: dict[str, Path] = {}
    concurrently(driver.up, lambda: images.update(build(["operator", "trainer"])))
    driver.load_images(images)
    with Steps() as steps, steps.step("install the chart with Helm", "the operator, and the kind ElasticJob", 5):
        install_chart(driver, images)


def take_down(driver: ClusterDriver) -> None:
    """Nothing is left of the demo: on a cluster of ours by taking that away, on another by removing job and chart."""
    if driver.name == "current":
        try:
            _delete_job(driver, yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))["metadata"]["name"])
        except KubeError as error:  # the kind itself is not there: no job either
            print(error)
        uninstall_chart(driver)
    driver.down()


def run(driver: ClusterDriver, lose_at: int | None = None, time_limit: float = 300.0, manifest: Path = MANIFEST) -> int:
    """The whole demo; returns the exit code: 0 only if a pod was lost, the job came back to full size and read the
    digits well."""
    set_up(driver)
    console = Console(highlight=False)
    text = adapt(manifest.read_text(encoding="utf-8"), driver)
    job = yaml.safe_load(text)
    name = job["metadata"]["name"]
    _delete_job(driver, name)
    console.print(f"\nkubectl apply -f {manifest.relative_to(ROOT)}", markup=False)
    story = Story(
        applied_at=time.time(),
        full=job["spec"]["workers"]["replicas"],
        lose_at=lose_at or steps_of(job) // 2,
    )
    driver.kubectl.apply(text, NAMESPACE)
    with Follower(driver, name, NAMESPACE) as follower, Screen(console) as screen:
        story = _follow(driver, follower, screen, story, name, story.applied_at + time_limit)
    print_table(console, story)
    wrong = complaint(story)
    if wrong:
        console.print(f"[bold red]The demo failed:[/] {wrong}", soft_wrap=True)
        print_logs(console, driver)
        return 1
    console.print(f"[bold green]The model reads {story.final_accuracy:.1%} of the test digits.[/]")
    return 0


def steps_of(job: Mapping[str, Any]) -> int:
    """How many steps a digits job trains: `--steps` of its container."""
    container = job["spec"]["workers"]["template"]["spec"]["containers"][0]
    words = " ".join([*container.get("command", []), *container.get("args", [])])
    found = re.search(r"--steps[= ](\d+)", words)
    return int(found[1]) if found else DEFAULT_STEPS


def print_logs(console: Console, driver: ClusterDriver) -> None:
    """Says where to look, after writing there all that kubectl can tell."""
    files = collect_logs(driver, LOGS, NAMESPACE)
    console.print("Where to look:", style="bold")
    for file in files:
        console.print(f"  {file}", soft_wrap=True, markup=False)


def _follow(driver: ClusterDriver, follower: Follower, screen: Screen, story: Story, job: str, end: float) -> Story:
    while not story.is_over and time.time() < end:
        seen = follower.next(timeout=0.25)
        if seen:
            story = observe(story, *seen)
        if story.lose_a_pod_now:
            pod = _pod_to_lose(driver, job)
            asked_at = time.time()
            driver.kubectl.run("delete", "pod", pod, "--namespace", NAMESPACE, "--wait=false")
            story = observe(story, asked_at, PodDeleted(pod))
        screen.update(story, time.time())
    return story


def _pod_to_lose(driver: ClusterDriver, job: str) -> str:
    """The worker with the highest index. Ranks go by seniority, so it is not the one whose log tells the steps."""
    pods = driver.kubectl.items("pods", NAMESPACE, worker_selector(job))
    names = {int(pod["metadata"]["labels"].get(LABEL_INDEX, 0)): pod["metadata"]["name"] for pod in pods}
    return str(names[max(names)])


def _delete_job(driver: ClusterDriver, name: str) -> None:
    """The job of an earlier run, and its pods: the new one starts from nothing."""
    driver.kubectl.delete("elasticjobs.elasticjob.dev", name, NAMESPACE, timeout=90)
