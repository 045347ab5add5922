"""Replicas of a sharded model on real pods, and a stream: the others continue in place, and nothing is lost.

What runs is the example of each, with what its own README says.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from hack.drivers import ClusterDriver
from hack.session_log import Entered, entered, steps_of
from hack.support import eventually
from tests.e2e.test_examples import Example, namespace

__all__ = ["namespace"]

ENDLESS = ("--epochs=100000", "--print-every=1", "--save-every=1000000")
START = 240
"""Time for pods to start and to train together, s: torch takes long where many of its processes start at once."""


class Replicas:
    """A running example of replicas, as its pods' logs show it."""

    def __init__(self, cluster: ClusterDriver, namespace: str, name: str, pods: int) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.example = Example(cluster, namespace, name)
        self.size = self.example.job["spec"]["workers"]["replicaSize"]
        use_torch_of_this_machine(self.example)
        self.example.arguments += ENDLESS
        self.example.apply(pods, least=self.size)

    def logs(self) -> dict[str, str]:
        return {pod: self.example.log(pod) for pod in self.example.pods}

    def together(self, replicas: int, timeout: float = START) -> dict[str, Entered]:
        """Waits until all pods train in this number of replicas. Pod -> the newest world of its last rank to say so."""

        def found() -> dict[str, Entered]:
            worlds = {pod: entered(log)[-1:] for pod, log in self.logs().items()}
            sizes = {pod: [world.workers for world in newest] for pod, newest in worlds.items()}
            assert len(worlds) == replicas * self.size, sizes
            assert all(size == [replicas] for size in sizes.values()), sizes
            return {pod: newest[0] for pod, newest in worlds.items()}

        worlds = eventually(found, timeout, 0.3, f"{replicas} replicas train")
        self.advances()
        return worlds

    def changes(self, pods: Sequence[str]) -> dict[str, int]:
        """How many worlds each pod has entered."""
        return {pod: len(entered(self.example.log(pod))) for pod in pods}

    def continue_without(self, changes: Mapping[str, int], replicas: int) -> None:
        """Waits until all pods of `changes` have trained in this number of replicas since then."""

        def found() -> bool:
            sizes = {
                pod: [world.workers for world in entered(self.example.log(pod))[known:]]
                for pod, known in changes.items()
            }
            assert all(replicas in size for size in sizes.values()), sizes
            return True

        eventually(found, 60, 0.3, f"{replicas} replicas continue")

    def advances(self) -> None:
        before = max(self.steps(), default=0)
        eventually(lambda: max(self.steps(), default=0) > before + 3, 60, 0.3, f"it trains after step {before}")

    def steps(self) -> list[int]:
        """All that have been printed by pods that are there."""
        return sorted(step for log in self.logs().values() for step in steps_of(log))

    def delete_pod(self, pod: str) -> None:
        self._cluster.kubectl.delete("pod", pod, self._namespace, wait=False)

    @property
    def restarts(self) -> int:
        status = self._cluster.kubectl.get("elasticjob", self.example.name, self._namespace)["status"]
        return int(status.get("restarts", {}).get("total", 0))

    def continued(self, worlds: dict[str, Entered], pods: Sequence[str], gone: Mapping[str, str] | None = None) -> None:
        """Raises AssertionError unless the processes of these pods are those of `worlds`, and took every step once:
        from their first one, or from when they lead because the first replica was lost. `gone`: logs of pods that are
        no more. They led if the first replica was silent for a while, on a busy machine."""
        logs = {**(gone or {}), **{pod: self.example.log(pod) for pod in pods}}
        # Processes may restart until all pods are there; what came before that is not looked at.
        logs = {pod: log[log.index(f"pid={worlds[pod].pid} ") :] for pod, log in logs.items()}
        processes = {pod: {world.pid for world in entered(log)} for pod, log in logs.items()}
        per_pod = self.example.job["spec"]["workers"]["procsPerWorker"]
        assert all(len(pids) == per_pod for pids in processes.values()), processes
        steps = sorted(step for log in logs.values() for step in steps_of(log))
        begun = {world.step + 1 for log in logs.values() for world in entered(log)}
        assert steps[0] in begun, (steps[0], begun)
        print(f"{len(steps)} steps, {steps[0]} to {steps[-1]}; restarts: {self.restarts}")
        assert steps == list(range(steps[0], steps[-1] + 1)), "no step is lost, and none is taken twice"


def use_torch_of_this_machine(example: Example) -> None:
    """The image's torch is 2.6, which has neither FSDP2 nor sharded checkpoints on CPUs. The test
    cluster's nodes are folders of this machine."""
    folders = {"python": sys.base_prefix, "packages": sys.prefix}
    template = example.job["spec"]["workers"]["template"]["spec"]
    template["volumes"] += [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()]
    example.container["volumeMounts"] += [
        {"name": name, "mountPath": path, "readOnly": True} for name, path in folders.items()
    ]
    example.container["command"] = [f"{sys.prefix}/bin/python", *example.container["command"][1:]]


@pytest.fixture
def start(cluster: ClusterDriver, namespace: str) -> Iterator[Callable[[str, int], Replicas]]:
    started: list[Replicas] = []

    def begin(name: str, pods: int) -> Replicas:
        started.append(Replicas(cluster, namespace, name, pods))
        return started[-1]

    yield begin
    for replicas in started:
        replicas.example.delete()


Start = Callable[[str, int], Replicas]


def kill(cluster: ClusterDriver, namespace: str, pod: str, pid: int) -> None:
    cluster.kubectl.run("exec", pod, "-n", namespace, "--", "python3", "-c", f"import os; os.kill({pid}, 9)")


def split(worlds: dict[str, Entered], replica: int) -> tuple[list[str], list[str]]:
    """(pods of this replica, all others)."""
    inside = [pod for pod, world in worlds.items() if world.replica == replica]
    return inside, [pod for pod in worlds if pod not in inside]


def test_the_other_replica_continues_without_one_that_lost_a_pod_and_it_comes_back(start: Start) -> None:
    job = start("fsdp2", 4)
    worlds = job.together(2)
    inside, others = split(worlds, 1)
    assert len(inside) == len(others) == 2
    changes, before = job.changes(others), {pod: job.example.log(pod) for pod in inside}
    job.delete_pod(inside[-1])
    job.continue_without(changes, 1)
    job.together(2)
    job.continued(worlds, others, before)
    assert job.restarts == 0


@pytest.mark.nightly
def test_a_replica_of_which_one_pods_node_is_drained_leaves_and_comes_back(
    start: Start, cluster: ClusterDriver, namespace: str
) -> None:
    job = start("fsdp2", 4)
    worlds = job.together(2)
    nodes: dict[str, set[int]] = collections.defaultdict(set)
    for pod, world in worlds.items():
        nodes[cluster.kubectl.get("pod", pod, namespace)["spec"]["nodeName"]].add(world.replica)
    node, replica = next((name, one) for name, (one, *more) in nodes.items() if not more)
    _, others = split(worlds, replica)
    changes = job.changes(others)
    try:
        drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector")
        cluster.kubectl.run(*drain, "elasticjob.dev/job-name=fsdp2,elasticjob.dev/component=worker", timeout=150)
        job.continue_without(changes, 1)
        job.together(2)
        job.continued(worlds, others)
        assert job.restarts == 0
    finally:
        cluster.kubectl.run("uncordon", node)


@pytest.mark.nightly
def test_the_other_replicas_continue_without_one_that_lost_a_process(
    start: Start, cluster: ClusterDriver, namespace: str
) -> None:
    """Tensor parallelism: two processes in each worker pod."""
    job = start("tensor-parallel", 3)
    worlds = job.together(3)
    victim, *_ = split(worlds, 2)[0]
    others = [pod for pod in worlds if pod != victim]
    changes = job.changes(others)
    kill(cluster, namespace, victim, worlds[victim].pid)
    job.continue_without(changes, 2)
    job.together(3)
    assert worlds[victim].pid != entered(job.example.log(victim))[-1].pid
    job.continued(worlds, others)


@pytest.mark.nightly
def test_a_stream_is_read_exactly_once_although_a_process_and_a_pod_are_lost(
    cluster: ClusterDriver, namespace: str
) -> None:
    assert cluster.shared_directory is not None
    example = Example(cluster, namespace, "stream")
    name = f"{namespace}-ledger"
    shared = f"$(ELASTICJOB_CHECKPOINT_DIRECTORY)/{name}"
    example.arguments += ("--epochs=15", f"--ledger={shared}", f"--checkpoint-dir={shared}/saved")
    example.apply(replicas=3, least=1)
    eventually(lambda: example.step > 20, 180, 0.3, "it trains")
    folder, (first, *_, last) = pathlib.Path(cluster.shared_directory) / name, example.pods
    (ledger,) = folder.glob(f"{first.rpartition('-')[0]}-*.jsonl")  # hostname and process
    kill(cluster, namespace, first, int(ledger.stem.rpartition("-")[2]))
    before = example.step
    eventually(lambda: example.step > before + 20, 60, 0.3, "it continues without the process")
    cluster.kubectl.delete("pod", last, namespace, wait=False)
    example.succeeds()
    trained = samples_of(folder)
    assert sorted(trained) == list(range(15))
    for epoch, samples in trained.items():
        assert sorted(samples) == list(range(960)), f"epoch {epoch}: each sample exactly once"
    example.delete()


def samples_of(folder: pathlib.Path) -> dict[int, list[int]]:
    """Epoch -> all samples of its committed steps: of each step those of its last round."""
    entries = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    last: dict[int, int] = {}
    for entry in entries:
        last[entry["step"]] = max(entry["round"], last.get(entry["step"], 0))
    print(f"{len(last)} steps, of which {sum(entry['round'] < last[entry['step']] for entry in entries)} were repeated")
    found: dict[int, list[int]] = collections.defaultdict(list)
    for entry in entries:
        if entry["round"] == last[entry["step"]]:
            found[entry["epoch"]] += entry["samples"]
    return found
