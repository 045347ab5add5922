"""A planned change costs no step of a script that saves when it gets SIGTERM, and no time where a script does not."""

from __future__ import annotations

import collections
import signal
import sys
from collections.abc import Sequence

import pytest
from elasticjob_runtime.contract import ExitCode, PlanReason, SpecValue

from hack.support import eventually
from tests.integration.runtime.agents import WORKER, Agent, Job, lives

TRAINING = """
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist

here, code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
member, round = os.environ["ELASTICJOB_MEMBER_ID"], os.environ["ELASTICJOB_ROUND"]
checkpoint = here / "checkpoint"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0  # before anybody is met: as late as it can be wrong
dist.init_process_group("gloo")
ledger = (here / f"ledger-{member}").open("a", buffering=1)
while True:
    step += 1
    told = torch.tensor([float(bool(asked)), float((here / "finish").exists())])
    dist.all_reduce(told)
    ledger.write(f"{round} {step}\\n")
    time.sleep(0.02)
    if told[1]:
        break
    if told[0]:  # all ranks save together, and only now
        dist.barrier()
        if dist.get_rank() == 0:
            time.sleep(0.5)
            checkpoint.with_suffix(".new").write_text(str(step))
            checkpoint.with_suffix(".new").rename(checkpoint)
            os._exit(code)  # the others do not wait for it
        os._exit(code)
"""

FORKED = ("--start-method", "zygote", "--preload", "json")


def start(job: Job, names: str, *, code: int = 0) -> list[Agent]:
    script = job.directory / "training.py"
    script.write_text(TRAINING)
    path = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    return job.start_all(names, *FORKED, script=[str(script), str(job.directory), str(code)], environment=path)


def steps(job: Job, member: str) -> dict[int, list[int]]:
    """Round -> the steps that this member did in it."""
    found: dict[int, list[int]] = collections.defaultdict(list)
    ledger = job.directory / f"ledger-{member}"
    for line in ledger.read_text().splitlines() if ledger.exists() else ():
        round_number, step = line.split()
        found[int(round_number)].append(int(step))
    return found


def all_train(job: Job, members: Sequence[str], *, after: int = 0) -> int:
    """The round, later than `after`, in which all of these members, and no others, have done a few steps, and say that
    they can save."""

    def there() -> int:
        plan = job.plan
        assert plan is not None
        assert plan.round > after, f"still plan {plan.round}"
        assert plan.size == len(members), f"plan {plan.round} has {plan.size} members"
        for name in members:
            assert len(steps(job, name)[plan.round]) > 3, f"{name} does not train"
            assert job.members[name].saves, f"{name} has not said that its workers handle SIGTERM"
        return plan.round

    return eventually(there, 90.0, what=f"{members} train; logs:\n{job.logs}")


def assert_no_step_is_lost(job: Job, before: int, after: int, survivors: Sequence[str]) -> None:
    last = {steps(job, name)[before][-1] for name in survivors}
    first = {steps(job, name)[after][0] for name in survivors}
    assert len(last) == len(first) == 1, f"{last}, {first}"
    assert first.pop() == last.pop() + 1, job.logs
    plan = job.plan
    assert plan is not None
    assert plan.restart_count == 0, "a worker that ended because it was asked to is no failure"


@pytest.mark.torch
@pytest.mark.parametrize("code", [0, 143])
def test_a_join_loses_no_step_of_a_script_that_saves_together_at_sigterm(job: Job, code: int) -> None:
    start(job, "a b", code=code)
    before = all_train(job, "ab")
    start(job, "c", code=code)
    after = all_train(job, "abc", after=before)
    assert after == before + 1
    assert_no_step_is_lost(job, before, after, "ab")
    job.finish()
    assert [agent.ends() for agent in job.agents] == [0, 0, 0], job.logs


@pytest.mark.torch
def test_a_resize_loses_no_step_of_a_script_that_saves_together_at_sigterm(job: Job) -> None:
    start(job, "a b c")
    before = all_train(job, "abc")
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2, members=["a", "b"]).to_json())
    after = all_train(job, "ab", after=before)
    assert_no_step_is_lost(job, before, after, "ab")
    assert steps(job, "c")[before][-1] == steps(job, "a")[before][-1], "the member that goes saves with the others"
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=3, members=["a", "b", "c"]).to_json())
    assert_no_step_is_lost(job, after, all_train(job, "abc", after=after), "ab")


@pytest.mark.torch
def test_the_others_start_from_what_a_leader_saved_that_left(job: Job) -> None:
    start(job, "a b c", code=143)
    before = all_train(job, "abc")
    plan = job.plan
    assert plan is not None
    leader = next(agent for agent in job.agents if agent.name == plan.leader)
    leader.signal(signal.SIGTERM)
    assert leader.ends() == ExitCode.TERMINATED
    stay = [name for name in "abc" if name != leader.name]
    after = all_train(job, stay, after=before)
    assert_no_step_is_lost(job, before, after, stay)
    plan = job.plan
    assert plan is not None
    assert plan.reason is PlanReason.MEMBER_LEFT


def light(job: Job, names: str, *flags: str, at_sigterm: str) -> list[Agent]:
    return job.start_all(
        names, *flags, script=[str(WORKER), str(job.directory)], environment={"AT_SIGTERM": at_sigterm}
    )


def test_a_handler_that_hangs_costs_its_grace_and_no_failure(job: Job) -> None:
    light(job, "a b", "--shutdown-timeout", "1", at_sigterm="hang")
    before = job.trains(2)
    eventually(lambda: all(member.saves for member in job.members.values()), what="handlers are seen")
    light(job, "c", "--shutdown-timeout", "1", at_sigterm="hang")
    after = job.trains(3, after=before)
    assert {worker.restarts for worker in after} == {0}
    assert not any(lives(worker.pid) for worker in before)
    assert job.client.get(job.keys.stop) is None


def test_workers_without_a_handler_are_not_waited_for(job: Job) -> None:
    agents = light(job, "a b", at_sigterm="default")
    before = job.trains(2)
    job.start("c")
    job.trains(3, after=before)
    assert not any(member.saves for name, member in job.members.items() if name in "ab")
    assert not any("time to save" in agent.output for agent in agents)


def test_workers_without_a_handler_let_the_others_save(job: Job) -> None:
    """Rank 0 alone has a handler; it may need the others until it has saved."""
    light(job, "a", at_sigterm="save")
    eventually(lambda: "a" in job.members, what="a is first")
    light(job, "b c", at_sigterm="default")
    before = job.trains(3)
    assert before[0].member == "a"
    eventually(lambda: job.members["a"].saves, what="the handler is seen")
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2, members=["a", "b"]).to_json())
    after = job.trains(2, after=before)
    assert (job.directory / f"saved-a-{before[0].round}").exists()
    assert {worker.restarts for worker in after} == {0}


def test_only_workers_that_can_save_get_the_signal(job: Job) -> None:
    """Two workers of one member: the one without a handler lives for as long as the other one saves."""
    agent = job.start("a", "--nproc-per-node", "2", nnodes="1:2", environment={"AT_SIGTERM": "save,default"})
    before = job.trains(1)
    eventually(lambda: job.members["a"].saves, what="the handler is seen")
    job.start("b", "--nproc-per-node", "2", nnodes="1:2", environment={"AT_SIGTERM": "save,default"})
    after = job.trains(2, after=before)
    assert {worker.restarts for worker in after} == {0}
    assert (job.directory / f"saved-a-{before[0].round}").exists()
    assert "lost a peer" not in agent.output.split("time to save")[0]
