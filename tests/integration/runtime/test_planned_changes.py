"""A planned change costs no step of a script that saves on SIGTERM, and no time where the script does not."""

from __future__ import annotations

import collections
import signal
import sys
from collections.abc import Sequence

import pytest
from elasticjob_runtime.contract import ExitCode, PlanReason, SpecValue

from hack.support import eventually
from tests.integration.runtime.agents import WORKER, Agent, Job, is_alive

TRAINING = """
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist

here, code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
signalled = []
signal.signal(signal.SIGTERM, lambda *_: signalled.append(True))
member, round = os.environ["ELASTICJOB_MEMBER_ID"], os.environ["ELASTICJOB_ROUND"]
checkpoint = here / "checkpoint"
# Read before the process group forms, when a stale checkpoint is most likely.
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
dist.init_process_group("gloo")
ledger = (here / f"ledger-{member}").open("a", buffering=1)
while True:
    step += 1
    flags = torch.tensor([float(bool(signalled)), float((here / "finish").exists())])
    dist.all_reduce(flags)
    ledger.write(f"{round} {step}\\n")
    time.sleep(0.02)
    if flags[1]:
        break
    if flags[0]:  # all ranks save together, and only now
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


def wait_for_steps(job: Job, members: Sequence[str], *, after: int = 0) -> int:
    """Waits for a round later than `after` in which exactly these members have done a few steps and report that they
    can save; returns its number."""

    def round_with_steps() -> int:
        plan = job.plan
        assert plan is not None
        assert plan.round > after, f"still plan {plan.round}"
        assert plan.size == len(members), f"plan {plan.round} has {plan.size} members"
        for name in members:
            assert len(steps(job, name)[plan.round]) > 3, f"{name} is not training"
            assert job.members[name].saves, f"{name} has not reported that its script handles SIGTERM"
        return plan.round

    return eventually(round_with_steps, 90.0, what=f"{members} train; logs:\n{job.logs}")


def assert_no_step_is_lost(job: Job, before: int, after: int, survivors: Sequence[str]) -> None:
    last = {steps(job, name)[before][-1] for name in survivors}
    first = {steps(job, name)[after][0] for name in survivors}
    assert len(last) == len(first) == 1, f"{last}, {first}"
    assert first.pop() == last.pop() + 1, job.logs
    plan = job.plan
    assert plan is not None
    assert plan.restart_count == 0, "ending on SIGTERM is not a failure"


@pytest.mark.torch
@pytest.mark.parametrize("code", [0, 143], ids=["exit code 0", "exit code 143"])
def test_a_join_loses_no_step_of_a_script_that_saves_on_sigterm(job: Job, code: int) -> None:
    start(job, "a b", code=code)
    before = wait_for_steps(job, "ab")
    start(job, "c", code=code)
    after = wait_for_steps(job, "abc", after=before)
    assert after == before + 1
    assert_no_step_is_lost(job, before, after, "ab")
    job.finish()
    assert [agent.exit_code() for agent in job.agents] == [0, 0, 0], job.logs


@pytest.mark.torch
def test_a_resize_loses_no_step_of_a_script_that_saves_on_sigterm(job: Job) -> None:
    start(job, "a b c")
    before = wait_for_steps(job, "abc")
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2, draining=["c"], generation=1).to_json())
    after = wait_for_steps(job, "ab", after=before)
    assert_no_step_is_lost(job, before, after, "ab")
    assert steps(job, "c")[before][-1] == steps(job, "a")[before][-1], "the leaving member saves with the others"
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=3, generation=2).to_json())
    assert_no_step_is_lost(job, after, wait_for_steps(job, "abc", after=after), "ab")


@pytest.mark.torch
def test_the_others_resume_from_what_a_leaving_leader_saved(job: Job) -> None:
    start(job, "a b c", code=143)
    before = wait_for_steps(job, "abc")
    plan = job.plan
    assert plan is not None
    leader = next(agent for agent in job.agents if agent.name == plan.leader)
    leader.signal(signal.SIGTERM)
    assert leader.exit_code() == ExitCode.TERMINATED
    stay = [name for name in "abc" if name != leader.name]
    after = wait_for_steps(job, stay, after=before)
    assert_no_step_is_lost(job, before, after, stay)
    plan = job.plan
    assert plan is not None
    assert plan.reason is PlanReason.MEMBER_LEFT


def light(job: Job, names: str, *flags: str, at_sigterm: str) -> list[Agent]:
    return job.start_all(
        names, *flags, script=[str(WORKER), str(job.directory)], environment={"AT_SIGTERM": at_sigterm}
    )


def test_a_hanging_handler_costs_the_shutdown_timeout_and_no_restart(job: Job) -> None:
    light(job, "a b", "--shutdown-timeout", "1", at_sigterm="hang")
    before = job.wait_for_training(2)
    eventually(lambda: all(member.saves for member in job.members.values()), what="the handlers are reported")
    light(job, "c", "--shutdown-timeout", "1", at_sigterm="hang")
    after = job.wait_for_training(3, after=before)
    assert {worker.restarts for worker in after} == {0}
    assert not any(is_alive(worker.pid) for worker in before)
    assert job.client.get(job.keys.stop) is None


def test_worker_processes_without_a_handler_are_stopped_at_once(job: Job) -> None:
    agents = light(job, "a b", at_sigterm="default")
    before = job.wait_for_training(2)
    job.start("c")
    job.wait_for_training(3, after=before)
    assert not any(member.saves for name, member in job.members.items() if name in "ab")
    assert not any("time to save" in agent.output for agent in agents)


def test_worker_processes_without_a_handler_keep_running_while_others_save(job: Job) -> None:
    """Only rank 0 has a handler; it may need the others until it has saved."""
    light(job, "a", at_sigterm="save")
    eventually(lambda: "a" in job.members, what="a is the first member")
    light(job, "b c", at_sigterm="default")
    before = job.wait_for_training(3)
    assert before[0].member == "a"
    eventually(lambda: job.members["a"].saves, what="the handler is reported")
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2, draining=["c"], generation=1).to_json())
    after = job.wait_for_training(2, after=before)
    assert (job.directory / f"saved-a-{before[0].round}").exists()
    assert {worker.restarts for worker in after} == {0}


def test_only_worker_processes_with_a_handler_get_the_signal(job: Job) -> None:
    """Of two worker processes of one member, the one without a handler keeps running while the other one saves."""
    agent = job.start("a", "--nproc-per-node", "2", nnodes="1:2", environment={"AT_SIGTERM": "save,default"})
    before = job.wait_for_training(1)
    eventually(lambda: job.members["a"].saves, what="the handler is reported")
    job.start("b", "--nproc-per-node", "2", nnodes="1:2", environment={"AT_SIGTERM": "save,default"})
    after = job.wait_for_training(2, after=before)
    assert {worker.restarts for worker in after} == {0}
    assert (job.directory / f"saved-a-{before[0].round}").exists()
    assert "lost a peer" not in agent.output.split("time to save")[0]
