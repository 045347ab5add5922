"""Operator and agents together, through a real API server and a real etcd: what one writes, the other reads.

No torch: the script only counts. Agents run as processes on this machine.
"""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticjob_api import ElasticJob
from elasticjob_api.goodput import TimePart, goodput

from hack.support import eventually
from tests.integration.operator.kube import Namespace
from tests.integration.operator.kubelet import Kubelet
from tests.integration.operator.process import Operator
from tests.integration.operator.shared import operator

__all__ = ["operator"]

SCRIPT = """
import pathlib, sys, time
from elasticjob_runtime.training import report_progress
stop, crash = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
for step in range(100_000):
    report_progress(step, loss=1 / (step + 1))
    time.sleep(0.05)
    if crash.exists():
        raise ZeroDivisionError("told to fail")
    if stop.exists():
        break
"""


class Training:
    """A job whose pods really run."""

    def __init__(self, ns: Namespace, folder: Path, submit: Callable[..., str], node: str) -> None:
        self.ns = ns
        self.stop, self.crash = folder / "stop", folder / "crash"
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT, encoding="utf-8")
        agent = [
            sys.executable,
            "-m",
            "elasticjob_runtime",
            "--nproc-per-node=1",
            "--start-method=spawn",
            str(self.script),
        ]
        command = [*agent, str(self.stop), str(self.crash)]
        self._template = {"spec": {"containers": [{"name": "trainer", "image": "none", "command": command}]}}
        self._submit = submit
        self.kubelet = Kubelet(ns, node, folder)

    def start(self, replicas: int, **job: object) -> None:
        self._submit(replicas=replicas, template=self._template, **job)
        self.trains_with(replicas)

    def trains_with(self, workers: int) -> None:
        eventually(
            lambda: self._faultless() and self.ns.status("digits").get("worldSize") == workers,
            what=f"{workers} train",
            timeout=60,
        )
        before = self.step()
        eventually(lambda: self.step() > before, what="steps go on")

    def _faultless(self) -> bool:
        assert self.kubelet.fault is None, repr(self.kubelet.fault)
        return True

    def step(self) -> int:
        return int(self.ns.status("digits").get("progress", {}).get("step", 0))


@pytest.fixture
def training(ns: Namespace, tmp_path: Path, submit: Callable[..., str], operator: Operator) -> Iterator[Training]:
    assert operator
    node = f"node-{uuid.uuid4().hex[:6]}"
    ns.add_node(node)
    folder = tmp_path / "node"
    folder.mkdir()
    training = Training(ns, folder, submit, node)
    yield training
    print(training.kubelet.logs())
    training.kubelet.close()
    ns.remove_node(node)


def test_grows_and_shrinks_while_it_trains(training: Training) -> None:
    training.start(1)
    training.ns.scale("digits", 3)
    training.trains_with(3)
    training.ns.scale("digits", 2)
    training.trains_with(2)
    assert set(training.ns.workers()) <= {"digits-worker-0", "digits-worker-1", "digits-worker-2"}
    assert training.ns.status("digits")["restarts"]["total"] == 0, "changes of size are free"


def test_goes_on_when_a_pod_is_deleted_and_comes_back_to_full_size(training: Training) -> None:
    training.start(3)
    round_number = training.ns.status("digits")["round"]
    training.ns.delete("pods", "digits-worker-1")
    eventually(
        lambda: training.ns.status("digits")["round"] >= round_number + 2,
        what="without it, and then with its successor",
        timeout=60,
    )
    training.trains_with(3)
    assert training.ns.status("digits")["restarts"]["total"] == 0


def test_script_that_raises_ends_the_job_with_its_traceback(training: Training) -> None:
    training.start(2, spec={"failurePolicy": {"maxRestarts": 1}})
    training.crash.touch()
    eventually(lambda: training.ns.is_true("digits", "Failed"), what="Failed", timeout=60)
    status = training.ns.status("digits")
    assert training.ns.condition("digits", "Failed")["reason"] == "MaxRestartsExceeded"
    assert status["restarts"]["total"] == 1
    assert status["lastFailure"]["worker"].startswith("digits-worker-")
    assert status["lastFailure"]["exitCode"] == 1
    assert "ZeroDivisionError: told to fail" in status["lastFailure"]["message"]
    assert 'raise ZeroDivisionError("told to fail")' in status["lastFailure"]["message"]
    ended = eventually(
        lambda: [pod for pod in training.ns.workers().values() if pod["status"]["phase"] == "Failed"],
        what="failed pods",
    )
    assert ended


def test_operator_that_is_killed_while_the_job_trains(training: Training, operator: Operator) -> None:
    training.start(2)
    operator.kill()
    training.ns.scale("digits", 3)
    operator.restart()
    training.trains_with(3)
    assert training.ns.status("digits")["restarts"]["total"] == 0


def _states(training: Training) -> dict[str, str]:
    """What `kubectl get` and `kubectl wait` show."""
    status = training.ns.status("digits")
    conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
    return {**{name: conditions[name] for name in ("Running", "Suspended")}, "summary": status["summary"]}


def test_suspended_and_resumed_it_trains_as_another_run_to_the_end(training: Training) -> None:
    training.start(2)
    training.ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: training.ns.is_true("digits", "Suspended"), what="Suspended", timeout=60)
    assert not training.ns.workers()
    assert _states(training) == {"Running": "False", "Suspended": "True", "summary": "Suspended"}
    assert training.ns.condition("digits", "Failed")["status"] == "False", (
        "workers that end at a SIGTERM are no failure"
    )
    training.ns.patch("elasticjobs", "digits", {"spec": {"suspend": False}})
    eventually(lambda: training.ns.status("digits")["rendezvous"]["id"].endswith("-2"), what="the second run")
    training.trains_with(2)
    assert _states(training) == {"Running": "True", "Suspended": "False", "summary": "Running"}
    assert training.ns.status("digits")["restarts"]["total"] == 0
    training.stop.touch()
    eventually(lambda: training.ns.is_true("digits", "Succeeded"), what="Succeeded", timeout=60)
    eventually(
        lambda: [pod["status"]["phase"] for pod in training.ns.workers().values()] == ["Succeeded"] * 2,
        what="the pods ended well",
    )
    eventually(lambda: not training.ns.all("services"), what="the services are gone")


def test_script_that_fails_as_a_rule_says_ends_the_job_without_a_restart(training: Training) -> None:
    rules = [{"exitCodes": [1], "reasons": ["ApplicationError"], "action": "Fail"}]
    training.start(2, spec={"failurePolicy": {"maxRestarts": 9, "rules": rules}})
    training.crash.touch()
    eventually(lambda: training.ns.is_true("digits", "Failed"), what="Failed", timeout=60)
    assert training.ns.condition("digits", "Failed")["reason"] == "FailedByRule"
    assert "ZeroDivisionError: told to fail" in training.ns.condition("digits", "Failed")["message"]


def test_agents_train_with_allowed_sizes_alone(training: Training) -> None:
    training.start(3, allowedReplicas=[1, 3])
    training.ns.scale("digits", 2)
    training.trains_with(1)
    training.ns.scale("digits", 3)
    training.trains_with(3)


def test_failure_that_a_rule_ignores_is_restarted_though_no_restart_is_left(training: Training) -> None:
    training.start(2, spec={"failurePolicy": {"maxRestarts": 0, "rules": [{"exitCodes": [1], "action": "Ignore"}]}})
    round_number = training.ns.status("digits")["round"]
    training.crash.touch()
    eventually(lambda: training.ns.status("digits")["round"] > round_number, what="another worker group", timeout=60)
    training.crash.unlink()
    training.trains_with(2)
    assert training.ns.status("digits")["restarts"]["total"] == 0
    assert training.ns.status("digits")["restarts"]["reported"] >= 1


LOGGING = """
import os, pathlib, sys, time
from elasticjob_runtime.training import report_progress
stop, crash = map(pathlib.Path, sys.argv[1:3])
log, saved, leads = stop.with_name("steps"), stop.with_name("saved"), os.environ["RANK"] == "0"
for step in range(int(saved.read_text()) if saved.exists() else 0, 100_000):
    time.sleep(0.05)
    if leads:
        report_progress(step)
        with log.open("a") as file:
            file.write(f"{time.time()} {step}\\n")
    if leads and step % 60 == 0:
        saved.with_suffix(".new").write_text(str(step))
        saved.with_suffix(".new").rename(saved)
    if leads and crash.exists():
        crash.unlink()
        raise ZeroDivisionError("told to fail")
    if stop.exists():
        break
"""


def seconds_of(log: str) -> tuple[float, float]:
    """(productive, repeated), by the script's own log of its steps alone."""
    steps = [(float(time), int(step)) for time, step in map(str.split, log.splitlines())]
    highest, productive, repeated = steps[0][1], 0.0, 0.0
    for (before, last), (time, step) in itertools.pairwise(steps):
        if step == last + 1:  # else its processes restarted in between
            new = step > highest
            productive, repeated = productive + new * (time - before), repeated + (not new) * (time - before)
        highest = max(highest, step)
    return productive, repeated


def test_the_goodput_is_that_of_the_trainings_own_log(training: Training) -> None:
    """A crash and a resize, each of which repeats up to 60 steps."""
    training.script.write_text(LOGGING, encoding="utf-8")
    training.start(1)
    eventually(lambda: training.step() >= 150, what="it has trained for a while", timeout=60)
    training.crash.touch()
    training.trains_with(1)
    eventually(lambda: training.step() >= 240, what="it has made up for the crash", timeout=60)
    training.ns.scale("digits", 2)
    training.trains_with(2)
    eventually(lambda: training.step() >= 350, what="it has made up for the resize", timeout=60)
    training.stop.touch()
    eventually(lambda: training.ns.is_true("digits", "Succeeded"), what="Succeeded")
    productive, repeated = seconds_of(training.stop.with_name("steps").read_text())
    job = ElasticJob.parse(training.ns.get("elasticjobs", "digits") or {})
    created, ended = job.metadata.creation_timestamp, job.status.completion_time
    assert job.status.goodput and job.status.history and created and ended  # noqa: PT018 all or nothing
    history, wall = job.status.history.read(), (ended - created).total_seconds()
    parts = {part.value: getattr(job.status.goodput, part.value) or 0 for part in TimePart}
    assert sum(parts.values()) == pytest.approx(wall, abs=len(parts)), "in whole seconds"
    blur = 2 + 1.5 * len(history.changes)
    """s: the history has whole seconds, and a step of up to a second is read from its rate. Exact is
    tests/unit/operator/policies/test_goodput.py."""
    assert productive - parts["unknown"] - blur <= parts["productive"] <= productive + blur, (parts, productive)
    assert repeated - parts["unknown"] - blur <= parts["repeated"] <= repeated + blur, (parts, repeated)
    assert parts["unknown"] <= wall / 4, parts
    shown = goodput(history, since=created, until=ended)
    assert {part.value: round(seconds) for part, seconds in shown.seconds.items()} == pytest.approx(parts, abs=1)


HANGING = """
import pathlib, sys, time
from elasticjob_runtime.training import report_progress
stop, hang = map(pathlib.Path, sys.argv[1:3])

def wait_forever():
    while hang.exists():
        time.sleep(4)

for step in range(100_000):
    report_progress(step)
    time.sleep(0.05)
    if hang.exists():
        wait_forever()
    if stop.exists():
        break
"""


def test_a_hang_is_named_in_a_condition_and_an_event_until_the_next_step(training: Training) -> None:
    training.script.write_text(HANGING, encoding="utf-8")
    policy = {"hang": {"action": "Report", "minSeconds": 2, "factor": 5}}
    training.start(1, spec={"failurePolicy": policy})
    hang, ns = training.crash, training.ns
    hang.touch()
    eventually(lambda: ns.condition("digits", "Stalled").get("reason") == "Hang", what="the hang is told", timeout=60)
    message = ns.condition("digits", "Stalled")["message"]
    assert "rank 0 is in wait_forever (train.py:8) (worker pod digits-worker-0" in message, message
    assert "on node node-" in message, message
    hang.unlink()
    eventually(lambda: not ns.is_true("digits", "Stalled"), what="the next step ends it", timeout=60)
    (event,) = [item for item in ns.events("digits") if item["reason"] == "Hang"]
    assert (event["type"], event.get("count", 1)) == ("Warning", 1)
    assert ns.status("digits")["restarts"]["total"] == 0
