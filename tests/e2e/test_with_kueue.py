"""Jobs in a queue of stock Kueue. Its name puts this file last: Kueue is installed for these tests only, since its
webhooks take part in the creation of every pod."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from hack.cluster import kueue as own_kueue
from hack.demo import manifests
from hack.drivers import ClusterDriver, KubeError
from hack.images.recipe import ROOT
from hack.session_log import entered, pause_above_step, steps_of
from hack.support import eventually
from tests.e2e.jobs import Job
from tests.e2e.queues import BASE, QUOTA, WORKER_CPU, Queue, Watch, holds, waits

pytestmark = pytest.mark.alone
nightly = pytest.mark.nightly
"""All but the first test, which goes through the states that the others look at more closely."""

EXAMPLE = ROOT / "examples" / "kueue"
SESSION = (
    "sh",
    "-c",
    'printf %s "$0" > /tmp/session.py && exec elasticrun /tmp/session.py --epochs=100000 --print-every=1 '
    '--save-every=1000000 --checkpoint-dir="$ELASTICJOB_CHECKPOINT_DIRECTORY/$ELASTICJOB_UID"',
    (ROOT / "examples" / "session" / "train.py").read_text("utf-8").replace("if session.is_leader and step", "if step"),
)
"""The session example, which trains for longer than any test and saves only when it is stopped. All of its processes
print their steps, so that any of them can be judged."""
STUBBORN = ("sh", "-c", "trap '' TERM; sleep 600 & wait; wait")
"""A worker that does nothing, and stops only when it is killed."""

NewJob = Callable[..., Job]


def log_of(cluster: ClusterDriver, pod: str, *words: str) -> str:
    """Empty if the pod has not started. `words`: options of `kubectl logs`."""
    try:
        return cluster.kubectl.logs(pod, *words)
    except KubeError:
        return ""


def world(cluster: ClusterDriver, pod: str, workers: int) -> bool:
    """Whether this worker pod trains in a world of this size."""
    worlds = entered(log_of(cluster, pod))
    return bool(worlds) and worlds[-1].workers == workers


def test_a_job_starts_small_grows_gives_back_its_surplus_without_a_lost_step_and_returns_where_it_was(
    cluster: ClusterDriver, queue: Queue, batch: Callable[[str, int], None], queued: NewJob
) -> None:
    batch("first", QUOTA)
    eventually(lambda: queue.runs("first"), 60, 0.3, "another job has the whole quota")
    job = queued("story", command=SESSION)
    waits(job, "WaitingForQuota", "insufficient unused quota for cpu")
    assert not job.pods
    assert not cluster.kubectl.items("statefulsets"), "not even its etcd"

    batch("second", 2 * WORKER_CPU)
    queue.end("first")
    job.trains(2)
    assert queue.runs("second")

    queue.end("second")
    base = eventually(lambda: queue.pods_of("story"), 60, 0.3, "the pods of the base")
    assert len(base) == 2
    survivor = base[0]
    eventually(lambda: world(cluster, survivor, 4), 120, 0.3, "it grows into the idle quota")
    assert queue.admitted("story") == 3
    process = entered(log_of(cluster, survivor))[-1].pid

    with Watch(cluster, "story") as watch:
        batch("third", 2 * WORKER_CPU)
        eventually(lambda: queue.runs("third"), 60, 0.1, "a job of higher priority gets the surplus")
        running = time.monotonic()
    began = min(watch.evicted.values())
    print(f"evicted to quota free: {max(watch.free.values()) - began:.2f} s, to its pod ready: {running - began:.2f} s")
    eventually(lambda: world(cluster, survivor, 2), 60, 0.3, "the others continue")
    assert sorted(pod["metadata"]["name"] for pod in job.pods) == base
    log = log_of(cluster, survivor)
    log = log[log.index(f"pid={process} ") :]
    assert {item.pid for item in entered(log)} == {process}, "the process goes on"
    steps = steps_of(log)
    assert steps == list(range(steps[0], steps[-1] + 1)), "no step is lost, and none is taken twice"
    pause, step = pause_above_step(log_of(cluster, survivor, "--timestamps"), 2)
    print(f"pause of the training: {pause:.3f} s above a step of {step:.3f} s")

    batch("fourth", BASE)
    eventually(lambda: queue.runs("fourth"), 90, 0.3, "a job of higher priority gets the base")
    waits(job, "WaitingForQuota")
    assert not job.pods
    assert any("is evicted from LocalQueue team" in message for message in job.events)

    queue.end("third")
    queue.end("fourth")
    job.trains(4)  # it comes back, and grows again
    resumed = entered(log_of(cluster, queue.pods_of("story")[0]))[0]
    assert resumed.step >= steps[-1], "it was saved when the base was preempted"
    assert job.restarts == 0

    job.delete()
    eventually(queue.left_nothing("story"), 60, 0.3, "no Workload is left")


@nightly
@pytest.mark.parametrize("state", ["pending", "admitted", "evicting"])
def test_a_deleted_job_leaves_no_workload(
    queue: Queue, batch: Callable[[str, int], None], queued: NewJob, state: str
) -> None:
    if state == "pending":
        batch("whole", QUOTA)
        eventually(lambda: queue.runs("whole"), 60, 0.3, "another job has the whole quota")
    job = queued(f"deleted-{state}", command=STUBBORN)
    if state == "pending":
        waits(job, "WaitingForQuota")
    else:
        eventually(lambda: queue.admitted(job.name) == 3, 60, 0.3, "base and surplus are admitted")
    if state == "evicting":
        queue.edit(QUOTA, stop="HoldAndDrain")
        eventually(lambda: holds(queue.workloads(job.name)[job.name], "Evicted"), 30, 0.1, "its base is evicted")
    job.delete()
    eventually(queue.left_nothing(job.name), 60, 0.3, "no Workload is left")


@nightly
def test_two_jobs_share_idle_quota_evenly(queue: Queue, batch: Callable[[str, int], None], queued: NewJob) -> None:
    queue.edit(2 * BASE + 2 * WORKER_CPU)
    batch("other", 2 * WORKER_CPU)
    eventually(lambda: queue.runs("other"), 60, 0.3, "another job has what is above the bases")
    one, two = queued("one"), queued("two")
    one.trains(2)
    two.trains(2)
    eventually(
        lambda: [len(queue.workloads(name)) for name in ("one", "two")] == [2, 2],
        *(60, 0.3, "each asks for one worker pod more"),
    )
    queue.end("other")
    one.trains(3)
    two.trains(3)


@nightly
@pytest.mark.parametrize("victim", ["elasticjob", "kueue"])
@pytest.mark.parametrize("taken", ["surplus", "base"])
def test_quota_is_given_back_though_a_controller_is_killed_meanwhile(
    cluster: ClusterDriver,
    queue: Queue,
    batch: Callable[[str, int], None],
    queued: NewJob,
    taken: str,
    victim: str,
) -> None:
    job = queued("killed")
    job.trains(4)
    before = job.step
    batch("urgent", QUOTA if taken == "base" else 2 * WORKER_CPU)
    namespace = f"{victim}-system"
    for pod in cluster.kubectl.items("pods", namespace):
        cluster.kubectl.run("delete", "pod", pod["metadata"]["name"], "-n", namespace, "--force", "--grace-period=0")
    eventually(lambda: queue.runs("urgent"), 120, 0.3, "the other job gets the quota")
    if taken == "surplus":
        assert job.trains(2) >= before
    queue.end("urgent")
    assert job.trains(4) >= before
    assert job.restarts == 0


@nightly
def test_training_goes_on_while_kueue_is_down_and_a_lost_pod_is_replaced_afterwards(
    cluster: ClusterDriver, queued: NewJob
) -> None:
    manager = ("deployment/kueue-controller-manager", "--namespace", own_kueue.NAMESPACE)
    job = queued("without-kueue")
    job.trains(4)
    try:
        cluster.kubectl.run("scale", *manager, "--replicas=0")
        eventually(lambda: not cluster.kubectl.items("pods", own_kueue.NAMESPACE), 60, 0.3, "Kueue is down")
        cluster.kubectl.delete("pod", job.worker(3), wait=False)
        job.trains(3)
        eventually(lambda: "webhook" in json.dumps(job.status), 60, 0.3, "the status says what rejects its pods")
    finally:
        cluster.kubectl.run("scale", *manager, "--replicas=1")
    cluster.kubectl.run("rollout", "status", *manager, "--timeout=60s", timeout=70)
    job.trains(4)
    assert job.restarts == 0


@nightly
def test_the_kueue_example_trains_to_its_end(kueue: ClusterDriver, tmp_path: Path) -> None:
    documents = manifests(kueue.kubectl.run("kustomize", str(EXAMPLE)), kueue)
    (job,) = (document for document in documents if document["kind"] == "ElasticJob")
    job["spec"]["workers"]["template"]["spec"]["containers"][0]["args"] += ["--epochs=1", "--samples=1280"]
    file = tmp_path / "kueue.yaml"
    file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    kueue.kubectl.apply(file)
    try:
        kueue.kubectl.wait("elasticjob/kueue", "condition=Succeeded", timeout=240)
        eventually(
            lambda: holds(kueue.kubectl.get("workload.kueue.x-k8s.io", "kueue"), "Finished"),
            *(60, 0.3, "its quota is given back"),
        )
    finally:
        kueue.kubectl.delete("elasticjob", "kueue", timeout=120)
        kueue.kubectl.run("delete", "--filename", str(file), "--ignore-not-found", timeout=120)
