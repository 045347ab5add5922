"""torchrun with --rdzv-backend=etcd-v3 recovers where its own backends do not: real processes on a real etcd."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Callable

import pytest
from elasticjob_runtime.contract import Fence

from hack.support import eventually
from tests.integration.runtime_torchrun.conftest import PATIENCE, TRAIN, Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

Jobs = Callable[..., Job]


def test_training_recovers_from_a_crash_even_of_the_master_stores_process(jobs: Jobs) -> None:
    """torchrun's c10d backend reuses the previous round's store, and never recovers."""
    job = jobs("2:2", script=TRAIN)
    a, b = job.start("a"), job.start("b")
    first = job.train("a", "b")
    follower, leader = sorted(("a", "b"), key=lambda name: -first[("a", "b").index(name)].rank)

    job.crash(follower)
    second = job.train("a", "b", without=first)
    assert [step.rank for step in second] == [step.rank for step in first], "ranks are stable"
    assert min(step.number for step in second) > 1, "training resumes from the checkpoint"

    job.crash(leader)
    job.train("a", "b", without=[*first, *second])

    job.stop()
    # A torchrun whose store served two rounds may abort while it exits, after everything is done and written.
    assert {a.exit_code(), b.exit_code()} <= {0, -signal.SIGABRT}
    outcome = job.read("outcome")
    assert outcome["state"] == "succeeded"
    assert outcome["round"] == 3, "one new plan for each crash"
    fences = [Fence.parse(line) for line in (job.folder / "fences").read_text().split()]
    assert [fence.round for fence in fences] == [1, 2, 3], "each round has a later fencing token"
    assert fences == sorted(fences)


def test_training_continues_while_agents_are_killed_leave_and_join(jobs: Jobs) -> None:
    """torchrun notices a lost node after 15 s and then waits for a last call; it ignores SIGTERM; at the end, all but
    one get a RendezvousClosedError."""
    job = jobs("1:2")
    agents = {name: job.start(name) for name in "ab"}
    two = dict(zip("ab", job.train("a", "b"), strict=True))
    leader, other = sorted(two, key=lambda name: two[name].rank)
    agents["c"] = job.start("c")
    eventually(lambda: f"spare: plan {job.read('plan')['round']} has 2 members" in agents["c"].output, PATIENCE)

    agents[leader].kill()  # the member that has the store and writes the plans
    taken_over = job.train(other, "c", without=list(two.values()))

    agents[other].process.terminate()
    one = job.train("c", without=taken_over)
    assert agents[other].exit_code() != 0
    assert job.read("plan")["reason"] in (
        "MemberLeft",
        "MemberLost",
    )  # a busy planner may look only after the member is gone; neither costs a restart

    agents["d"] = job.start("d")
    job.train("c", "d", without=one)
    job.stop()
    assert [agents[name].exit_code() for name in "cd"] == [0, 0]


def test_sigterm_before_workers_start_leaves_at_once(jobs: Jobs) -> None:
    """torch's agent handles signals only once it has worker processes; without ours, its lease would have to expire."""
    job = jobs("2:2")
    a = job.start("a")
    eventually(lambda: "waiting for members: 1 present, at least 2 needed" in a.output, PATIENCE)
    assert job.read("members/a")
    a.process.terminate()
    assert a.exit_code() == 1
    assert job.read("members/a") == {}
    last = [line for line in a.output.strip().splitlines() if not line.startswith("[etcd-v3]")][-1]
    assert last.startswith("torchrun: Process "), "one line, no traceback"


STEPS = """
import os, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(70):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
assert "exec_hooks" not in os.environ.get("PYTHONPATH", "")
"""


def test_the_optimizer_steps_of_an_unmodified_script_are_counted(jobs: Jobs, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "unmodified.py"
    script.write_text(STEPS)
    job = jobs("1:1", script=script)
    a = job.start("a")
    assert a.exit_code() == 0, a.output
    assert job.read("training-progress")["optimizer_steps"] == 70, "the last count is published before torchrun ends"
