"""The demo: the session example loses a pod halfway, and finishes without a lost step.

`python -m hack.demo run|install|down`, on the cluster that `CLUSTER` selects (own or current).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from elasticjob_operator.names import LABEL_INDEX, worker_selector
from rich.console import Console

from hack.cluster import ClusterError
from hack.drivers import (
    ClusterDriver,
    KubeError,
    cluster_driver,
    collect_logs,
    install_chart,
    uninstall_chart,
)
from hack.images import build
from hack.images.recipe import ROOT
from hack.session_log import entered, steps_lost, steps_of
from hack.steps import StepError, Steps, concurrently

EXAMPLE = ROOT / "examples" / "session"
JOB = "session"
LOGS = ROOT / ".cluster" / "demo"
NAMESPACE = "default"
HALFWAY = 500
"""The step at which a pod is deleted: the example takes 1,000."""
TIME_LIMIT = 300.0
"""s for the job."""
CONSOLE = Console(highlight=False, soft_wrap=True)


class DemoError(Exception):
    """It did not show what it should; the message says what."""


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


def manifests(built: str, driver: ClusterDriver) -> list[dict[str, Any]]:
    """What `kubectl kustomize` printed, for this cluster: our image with torch (its Python is `python3`), its volume
    for checkpoints, and what three pods may request on a small machine."""
    documents: list[dict[str, Any]] = [item for item in yaml.safe_load_all(built) if item]
    shared = {"hostPath": {"path": driver.shared_directory, "type": "Directory"}}
    for document in documents:
        if document["kind"] == "ElasticJob":
            container = document["spec"]["workers"]["template"]["spec"]["containers"][0]
            container.update(image=driver.image("trainer"), imagePullPolicy=driver.pull_policy)
            container["command"] = ["python3", *container["command"][1:]]
            container["resources"] = {"requests": {"cpu": "100m", "memory": "400Mi"}}
            document["spec"]["checkpoint"]["volume"] = driver.checkpoint_volume or shared
    return documents


def run(driver: ClusterDriver) -> None:
    """Raises DemoError unless a pod was deleted, the other worker processes continued, a replacement joined, and no
    step was lost."""
    documents = manifests(driver.kubectl.run("kustomize", str(EXAMPLE)), driver)
    (job,) = (one for one in documents if one["kind"] == "ElasticJob")
    full = job["spec"]["workers"]["replicas"]
    _delete_job(driver)
    began = time.monotonic()
    end = began + TIME_LIMIT

    def say(what: str) -> None:
        CONSOLE.print(f"{time.monotonic() - began:6.1f} s  {what}", markup=False)

    driver.kubectl.apply(yaml.safe_dump_all(documents, sort_keys=False), NAMESPACE)
    say(f"kubectl apply -k {EXAMPLE.relative_to(ROOT)}")
    _wait("training starts", lambda: any(map(steps_of, _logs(driver).values())), driver, end)
    say(f"training, with up to {full} worker pods")
    _wait("all train together", lambda: _together(_logs(driver).values(), full, HALFWAY), driver, end)
    before = _logs(driver)
    victim = _pod_to_delete(driver)
    driver.kubectl.run("delete", "pod", victim, "--namespace", NAMESPACE, "--wait=false")
    say(f"worker pod {victim} is deleted at step {max(map(_last_step, before.values()))}")
    _wait("the job ends", lambda: _ended(driver), driver, end)
    if failed := _ended(driver).get("Failed"):
        raise DemoError(f"the job failed: {failed['reason']}: {failed['message']}")
    say("the job has succeeded")
    kubeconfig = ["--kubeconfig", str(driver.kubectl.kubeconfig)] if driver.kubectl.kubeconfig else []
    subprocess.run(
        [sys.executable, "-m", "elasticjob", "describe", JOB, "--namespace", NAMESPACE, *kubeconfig],
        check=False,
    )
    judge({pod: log for pod, log in before.items() if pod != victim}, _logs(driver), full)
    CONSOLE.print("A pod was lost, no other process restarted, and every step was taken.", style="bold green")


def judge(before: Mapping[str, str], after: Mapping[str, str], full: int) -> None:
    """`before`: the logs of the remaining pods when another one was deleted; `after`: of all pods at the end. Raises
    DemoError."""
    changes = {pod: entered(after.get(pod, ""))[len(entered(log)) :] for pod, log in before.items()}
    sizes = {world.workers for worlds in changes.values() for world in worlds}
    if not any(size < full for size in sizes):
        raise DemoError("the logs do not show that the other worker processes continued without the pod")
    if full not in sizes:
        raise DemoError("the job ended before it was back at full size")
    restarted = [pod for pod, log in before.items() if {one.pid for one in changes[pod]} != {entered(log)[-1].pid}]
    if restarted:
        raise DemoError(f"worker processes of the remaining pods restarted: {', '.join(restarted)}")
    if lost := sum(steps_lost(after[pod]) - steps_lost(log) for pod, log in before.items()):
        raise DemoError(f"steps were lost: {lost}")


def _wait(what: str, happens: Callable[[], object], driver: ClusterDriver, end: float) -> None:
    while not happens():
        ended = _ended(driver)
        if time.monotonic() > end or ended:
            raise DemoError(
                f"not before the time was up or the job had ended ({', '.join(ended) or 'it runs'}): {what}"
            )
        time.sleep(0.5)


def _ended(driver: ClusterDriver) -> dict[str, dict[str, str]]:
    """The conditions that say that the job has ended."""
    status = driver.kubectl.get("elasticjob", JOB, NAMESPACE).get("status", {})
    return {
        condition["type"]: condition
        for condition in status.get("conditions", [])
        if condition["type"] in {"Succeeded", "Failed"} and condition["status"] == "True"
    }


def _logs(driver: ClusterDriver) -> dict[str, str]:
    found = {}
    for pod in driver.kubectl.items("pods", NAMESPACE, worker_selector(JOB)):
        if pod["status"].get("phase") in {"Running", "Succeeded", "Failed"}:
            found[pod["metadata"]["name"]] = driver.kubectl.logs(pod["metadata"]["name"], namespace=NAMESPACE)
    return found


def _together(logs: Iterable[str], full: int, step: int) -> bool:
    worlds = [entered(log)[-1:] for log in logs]
    return sum(bool(world) and world[0].workers == full for world in worlds) >= full and any(
        _last_step(log) >= step for log in logs
    )


def _last_step(log: str) -> int:
    return max(steps_of(log), default=0)


def _pod_to_delete(driver: ClusterDriver) -> str:
    """The worker pod with the highest index. Members that joined first have the lowest ranks, so it is probably not
    rank 0's, which prints the steps."""
    pods = driver.kubectl.items("pods", NAMESPACE, worker_selector(JOB))
    last = max(pods, key=lambda pod: int(pod["metadata"]["labels"].get(LABEL_INDEX, 0)))
    return str(last["metadata"]["name"])


def _delete_job(driver: ClusterDriver) -> None:
    """Deletes the job of an earlier demo, so that the new one starts from scratch."""
    driver.kubectl.delete("elasticjobs.elasticjob.dev", JOB, NAMESPACE, timeout=90)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.demo", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="set up cluster, images and chart, then run the job and follow it")
    commands.add_parser("install", help="set up cluster, images and chart only")
    commands.add_parser("down", help="remove everything that the demo created")
    arguments = parser.parse_args()
    try:
        driver = cluster_driver()
        if arguments.command == "down":
            take_down(driver)
        else:
            set_up(driver)
        if arguments.command == "run":
            try:
                run(driver)
            except DemoError:
                for file in collect_logs(driver, LOGS, NAMESPACE):
                    print(file)
                raise
    except (DemoError, ClusterError, KubeError, StepError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
