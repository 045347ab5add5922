"""Replicas under real agents: one ends as a whole if it loses a process, starts again and joins; the others go on."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from elasticjob_runtime.contract import ExitCode, MemberState, PlanValue, ReplicaValue

from hack.support import eventually
from tests.integration.runtime.agents import SOURCE
from tests.integration.runtime.small_torch import write_small_torch
from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.replica_driver import SCRIPT, Trained
from tests.integration.runtime_session.session_job import FSDP, START, SessionJob
from tests.integration.runtime_session.test_replica_sessions import alone

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ENVIRONMENT = {"KIND": "fsdp", "HIDDEN": "17", "EPOCHS": "6", "STEP_SECONDS": "0.05", "SLOW": ""}
STEPS = 60

ALONE = """
import time, torch
optimizer = torch.optim.Optimizer()
for _ in range(60):
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.fixture
def job(etcd: str, tmp_path: pathlib.Path) -> Iterator[SessionJob]:
    job = SessionJob(etcd, tmp_path, script=SCRIPT, environment=ENVIRONMENT, preload=FSDP)
    yield job
    job.close()


def test_replicas_continue_without_the_one_that_lost_a_process_and_it_comes_back(
    job: SessionJob, tmp_path: pathlib.Path
) -> None:
    slow = {"SLOW": str(job.directory / "slow"), "SLOW_SECONDS": "1"}
    for name in "abc":
        job.start(name, "--replica-size=1", "--nproc-per-node=2", nnodes="2:4", **slow)
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    os.kill(job.pids("b", 1)[-1], signal.SIGKILL)
    eventually(lambda: 2 in [size for _, size in job.steps("a")], 60, what="a and c train without b")
    eventually(lambda: len(job.pids("b", 0)) == len(job.pids("b", 1)) == 2, 60, what=f"b starts again\n{job.logs}")
    job.wait_for_world(3, "a", "b", "c", timeout=START)
    job.hurry()
    for agent in job.agents:
        assert agent.exit_code(120.0) == 0, job.logs
    found = [Trained(name, [Run.read(tmp_path / f"{name}-{rank}") for rank in range(2)]) for name in "abc"]
    for replica in found:
        replica.assert_same(found[0])
        assert [rank.facts["committed"] for rank in replica.ranks] == [STEPS] * 2
    assert found[0].distance(alone(ENVIRONMENT)) < 1e-10
    assert [len(job.pids(name, rank)) for name in "ac" for rank in range(2)] == [1] * 4


def test_a_replica_that_is_alone_continues_from_the_memory_of_its_agent_if_it_loses_a_process(
    job: SessionJob, tmp_path: pathlib.Path
) -> None:
    job.start("a", "--replica-size=1", "--nproc-per-node=2", nnodes="1")
    job.wait_for_world(1, "a", timeout=START)
    eventually(lambda: job.steps("a")[-1][0] >= 20, 120, what=f"it trains a while\n{job.logs}")
    os.kill(job.pids("a", 1)[-1], signal.SIGKILL)
    assert job.agents[0].exit_code(120.0) == 0, job.logs
    steps = [step for step, _ in job.steps("a")]
    (again,) = (step for before, step in itertools.pairwise(steps) if step <= before)
    assert again > 1
    assert steps[-1] == STEPS
    found = Trained("a", [Run.read(tmp_path / f"a-{rank}") for rank in range(2)])
    assert found.distance(alone(ENVIRONMENT)) < 1e-10


def test_a_replica_that_is_alone_continues_from_the_copy_of_the_member_that_it_loses(
    job: SessionJob, tmp_path: pathlib.Path
) -> None:
    """The other member gets the lost one's rank, and a spare its own. Their shards have 9 and 8 of 17 rows."""
    agents = {name: job.start(name, "--replica-size=2", "--nproc-per-node=1", nnodes="2:4") for name in "abc"}
    eventually(lambda: plan_of(job).size == 2, START, what=lambda: f"two of three train\n{job.logs}")
    leader = plan_of(job).leader
    (other,) = {*members_of(job, leader)} - {leader}
    (spare,) = {*"abc"} - {leader, other}
    eventually(lambda: job.steps(other)[-1][0] >= 20, 120, what=lambda: f"it trains a while\n{job.logs}")
    agents[leader].signal(signal.SIGKILL)
    for name in (other, spare):
        assert agents[name].exit_code(120.0) == 0, job.logs
    again, *_ = job.steps(spare)[0]
    assert again > 1
    found = Trained("a", [Run.read(tmp_path / f"{name}-0") for name in (other, spare)])
    assert found.distance(alone(ENVIRONMENT)) < 1e-10


@pytest.mark.parametrize(
    ("replica", "count"),
    [
        pytest.param("--replica-size=1 --nproc-per-node=2", 2, marks=pytest.mark.nightly),
        ("--replica-size=2 --nproc-per-node=1", 1),
    ],
)
def test_replicas_that_all_leave_save_and_go_on_after_that_step(
    replica: str, count: int, etcd: str, tmp_path: pathlib.Path
) -> None:
    environment = {**ENVIRONMENT, "CHECKPOINTS": str(tmp_path / "checkpoints"), "EVERY": "1000", "EPOCHS": "5"}
    steps = []
    for number in range(2):
        (folder := tmp_path / str(number)).mkdir()
        job = SessionJob(etcd, folder, script=SCRIPT, environment=environment, preload=FSDP)
        try:
            for name in "ab":
                job.start(name, *replica.split(), nnodes="2")
            job.wait_for_world(count, "a", "b", timeout=START)
            for agent in job.agents if number == 0 else ():
                agent.signal(signal.SIGTERM)
            for agent in job.agents:
                assert agent.exit_code(120.0) == (ExitCode.TERMINATED if number == 0 else 0), job.logs
            steps.append([step for step, _ in job.steps("a")])
        finally:
            job.close()
    assert steps[0][-1] < 50
    assert steps[1] == list(range(steps[0][-1] + 1, 51))


def test_replicas_without_a_session_are_said_to_train_apart(etcd: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    path = {"PYTHONPATH": f"{write_small_torch(tmp_path)}:{SOURCE}"}
    job = SessionJob(etcd, tmp_path, script=tmp_path / "alone.py", environment=path)
    try:
        for name in "ab":
            job.start(name, "--replica-size=1", nnodes="2")
        for agent in job.agents:
            assert agent.exit_code(120.0) == 0, job.logs
            assert agent.log.read_text().count("trains apart from the others") == 1
    finally:
        job.close()


@pytest.mark.nightly  # a minute or three
def test_a_replica_leaves_after_a_step_if_one_member_does_and_the_other_one_joins_again_with_a_spare(
    etcd: str, tmp_path: pathlib.Path
) -> None:
    """As when the node of one of them is drained while another worker pod waits as a spare."""
    environment, flags = {**ENVIRONMENT, "EPOCHS": "60"}, ("--replica-size=2", "--nproc-per-node=1")
    job = SessionJob(etcd, tmp_path, script=SCRIPT, environment=environment, preload=FSDP)
    try:
        agents = {name: job.start(name, *flags, nnodes="2:4") for name in "abcde"}
        eventually(lambda: plan_of(job).size == 4, START, what=lambda: f"four of five train\n{job.logs}")
        (spare,) = (name for name in "abcde" if not members_of(job, name))
        others = members_of(job, plan_of(job).leader)
        stays, leaves = (name for name in "abcde" if name not in (*others, spare))
        job.wait_for_world(2, *others, stays, leaves, timeout=START)
        eventually(lambda: job.members[spare].state is MemberState.READY, START, what=lambda: f"a spare\n{job.logs}")
        agents[leaves].signal(signal.SIGTERM)
        assert agents[leaves].exit_code(60.0) == 143, job.logs
        eventually(lambda: {*members_of(job, spare)} == {stays, spare}, what=lambda: f"a new replica\n{job.logs}")
        job.wait_for_world(2, *others, stays, spare, timeout=START)
        joined = members_of(job, spare)
        for name in (*others, *joined):
            assert agents[name].exit_code(180.0) == 0, job.logs
    finally:
        job.close()
    for name in others:
        assert [step for step, _ in job.steps(name)] == list(range(1, 601)), "no step is interrupted"
        assert len(job.pids(name)) == 1
    assert "Traceback" not in agents[leaves].output + agents[stays].output
    found = [Trained(part[0], [Run.read(tmp_path / f"{name}-0") for name in part]) for part in (others, joined)]
    found[1].assert_same(found[0])
    assert found[0].distance(alone(environment)) < 1e-10


def plan_of(job: SessionJob) -> PlanValue:
    plan = job.plan
    assert plan is not None
    return plan


def members_of(job: SessionJob, name: str) -> tuple[str, ...]:
    """Of its replica."""
    found = job.client.get(f"{job.keys.replicas}{name}")
    return ReplicaValue.from_json(found.value).members if found is not None else ()
