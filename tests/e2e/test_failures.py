"""Worker pods that fail or do not start, judged by the table in policies/failures.py. The jobs run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from hack.drivers import ClusterDriver
from hack.support import eventually
from tests.e2e.jobs import Job

ONCE = 'mkdir "$ELASTICJOB_CHECKPOINT_DIRECTORY/$ELASTICJOB_UID" 2>/dev/null && exit 143; exit 0'
"""A command that ends as by SIGTERM the first time and succeeds the second."""

# Under a shell, no agent sees the kernel kill it: the kubelet reports it.
HOG = "import time; kept = [bytearray(b'x' * 10_000_000) for _ in range(100)]; time.sleep(600)"


def edited(
    *,
    container: Mapping[str, Any] | None = None,
    lifecycle: Mapping[str, Any] | None = None,
) -> Callable[[dict[str, Any]], None]:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["spec"]["workers"]["template"]["spec"]["containers"][0].update(container or {})
        manifest["spec"]["lifecycle"] = dict(lifecycle or {})

    return edit


def shell(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


NO_IMAGE = "127.0.0.1:1/trainer:1"
"""Nothing listens there, so the pull fails at once, whatever the cluster's DNS does."""

NO_RESTARTS = {"max_restarts": 0}

JOBS: dict[str, dict[str, Any]] = {
    "terminated": {"command": shell(ONCE)},
    "hungry": NO_RESTARTS
    | {
        "command": shell(f'exec python3 -c "{HOG}"'),
        "edit": edited(container={"resources": {"limits": {"memory": "64Mi"}}}),
    },
    "no-image": {
        "command": shell("exit 0"),
        "edit": edited(container={"image": NO_IMAGE, "imagePullPolicy": "IfNotPresent"}),
    },
    "no-start": {"command": ("no-such-program",), "edit": edited(lifecycle={"startupDeadlineSeconds": 30})},
}


@pytest.fixture(scope="module")
def jobs(cluster: ClusterDriver) -> Iterator[dict[str, Job]]:
    made = {name: Job(cluster, name, replicas=1, least=1, most=1, **options) for name, options in JOBS.items()}
    for job in made.values():
        job.apply()
    yield made
    for job in made.values():
        job.delete()


def ends(job: Job, condition: str, timeout: float = 120) -> dict[str, Any]:
    """Waits for the job to end with this condition, and returns it. Fails at once if the job ends the other way."""
    other = "Failed" if condition == "Succeeded" else "Succeeded"
    eventually(lambda: job.is_true("Succeeded") or job.is_true("Failed"), timeout, 0.5, f"{job.name} ends")
    assert job.is_true(condition), job.condition(other)
    return job.condition(condition)


def waits_for(job: Job, reason: str) -> dict[str, Any]:
    """Waits until the condition Running has this reason, and returns it."""

    def running_for_that_reason() -> dict[str, Any]:
        running = job.condition("Running")
        return running if running.get("reason") == reason else {}

    return eventually(running_for_that_reason, 90, 0.5, f"{job.name}: {reason}")


def test_sigterm_counts_as_a_restart_unless_the_pod_was_deleted(jobs: dict[str, Job]) -> None:
    """A liveness probe or the script itself may send it: at no cost, the worker would restart forever.
    test_disruptions.py has drains and deletions."""
    ends(jobs["terminated"], "Succeeded")
    assert jobs["terminated"].restarts == 1
    assert jobs["terminated"].status["lastFailure"]["reason"] == "Terminated"


def test_an_oom_kill_is_reported_as_out_of_memory(jobs: dict[str, Job]) -> None:
    failed = ends(jobs["hungry"], "Failed")
    assert failed["reason"] == "MaxRestartsExceeded"
    last = jobs["hungry"].status["lastFailure"]
    assert (last["reason"], last["exitCode"]) == ("OutOfMemory", 137)
    assert "raise the container's memory limit" in last["message"]


def test_an_unavailable_image_is_reported_and_no_pod_is_recreated(cluster: ClusterDriver, jobs: dict[str, Job]) -> None:
    job = jobs["no-image"]
    running = waits_for(job, "ImageUnavailable")
    assert running["status"] == "False"
    assert NO_IMAGE in running["message"]
    uid = job.pods[0]["metadata"]["uid"]
    assert job.restarts == 0
    # While the kubelet retries, no pod is recreated, so that you can look at it. Suspending the job lets you mend it.
    job.suspend(True)
    eventually(lambda: job.is_true("Suspended"), 60, 0.5, "Suspended")
    container = job.manifest["spec"]["workers"]["template"]["spec"]["containers"][0]
    container["image"] = cluster.image("trainer")
    job.manifest["spec"]["suspend"] = False
    job.apply()
    ends(job, "Succeeded")
    assert job.pods[0]["metadata"]["uid"] != uid


def test_a_missing_program_is_named_in_the_failure(jobs: dict[str, Job]) -> None:
    """containerd cannot start the container, and the startup deadline ends the job."""
    failed = ends(jobs["no-start"], "Failed")
    assert "no-such-program" in failed["message"] + jobs["no-start"].status.get("lastFailure", {}).get("message", "")
