"""status.history with real agents, a real API server and a real etcd: each change is one entry, with its cause."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from elasticjob_api import Change, History

from hack.support import eventually
from tests.integration.operator.shared import operator
from tests.integration.operator.test_with_real_agents import Training, training

__all__ = ["operator", "training"]


def history(training: Training) -> History:
    return History.model_validate(training.ns.status("digits").get("history") or {})


def changes(training: Training) -> list[tuple[str, str]]:
    return [(change.type, change.reason) for change in history(training).changes]


def ends_with(training: Training, *last: tuple[str, str]) -> list[Change]:
    """Waits until the newest changes are these, and the last one has its durations, if it is a round."""

    def newest() -> list[Change]:
        found = list(history(training).changes[-len(last) :])
        done = found and (found[-1].type != "Round" or found[-1].resume_seconds is not None)
        return found if done and [(change.type, change.reason) for change in found] == list(last) else []

    return eventually(newest, what=f"{last} in the history", timeout=60)


def kill(training: Training, member: str, *, agent: bool = False) -> None:
    """Kills the worker process of that worker pod, or its agent. Other tests have worker pods of the same name."""
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    found = [pid for pid in pids if _is(pid, training.script, member, agent)]
    assert found, f"no process of {member}"
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def _is(pid: int, script: Path, member: str, agent: bool) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended
    is_agent = b"elasticjob_runtime" in command and b"--start-method=spawn" in command
    return (
        os.fsencode(script) in command
        and is_agent is agent
        and any(variable.startswith(f"ELASTICJOB_MEMBER_ID={member}-".encode()) for variable in environment)
    )


START, FAILED = ("Round", "Start"), ("Round", "WorkerFailed")
LOST, JOINED, SCALED_UP = ("Round", "MemberLost"), ("Round", "MemberJoined"), ("Scaled", "ScalingUp")


@pytest.mark.timeout(240)
def test_each_change_of_the_group_is_one_entry_with_its_cause_and_outlives_the_pods(training: Training) -> None:
    training.start(2)
    ends_with(training, START)

    kill(training, "digits-worker-1")
    failed = ends_with(training, START, FAILED)[-1]
    assert re.match("digits-worker-1-[a-z0-9]{5}, rank 1: Signal, exit code -9", failed.message)
    assert (failed.restarts, failed.workers_before, failed.workers) == (1, 2, 2)
    assert failed.phases is not None
    assert None not in (failed.phases.detect, failed.phases.plan, failed.phases.first_step, failed.form_seconds)

    kill(training, "digits-worker-1", agent=True)
    lost, joined = ends_with(training, LOST, JOINED)
    assert "digits-worker-1" in lost.message
    assert [(lost.workers_before, lost.workers), (joined.workers_before, joined.workers)] == [(2, 1), (1, 2)]

    training.ns.scale("digits", 3)
    scaled, grown = ends_with(training, SCALED_UP, JOINED)
    assert (scaled.workers_before, scaled.workers) == (2, 3)
    assert (grown.world_size_before, grown.world_size) == (2, 3)

    training.stop.touch()
    eventually(lambda: training.ns.is_true("digits", "Succeeded"), what="Succeeded", timeout=60)
    for name in training.ns.workers():
        training.ns.delete("pods", name)
    eventually(lambda: not training.ns.workers(), what="the pods are gone")
    end = ends_with(training, ("Succeeded", "WorkersSucceeded"))[-1]
    assert end.world_size_before == 3
    assert changes(training) == [START, FAILED, LOST, JOINED, SCALED_UP, JOINED, ("Succeeded", "WorkersSucceeded")]
    samples = history(training).progress
    assert samples[-1].step == training.step(), "the newest progress is a sample"
    assert {sample.world_size for sample in samples} >= {2, 3}
