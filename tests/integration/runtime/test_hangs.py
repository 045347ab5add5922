"""Worker processes that take no step: real agents, and real torch over gloo, with scripts that report nothing."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import ExitCode, HangValue

from hack.support import eventually
from tests.integration.runtime.agents import QUICK, Agent, Job

pytestmark = pytest.mark.torch

SCRIPT = """
import os, pathlib, sys, time
import torch, torch.distributed

here, how = pathlib.Path(sys.argv[1]), sys.argv[2]
first, rank = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", int(os.environ["RANK"])

def wait_forever():
    while not (here / "found").exists():
        time.sleep(10 if how == "hangs" else 4)

def evaluate():
    while not (here / "evaluated").exists():
        sum(range(100_000))

torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    if step == 20 and first and rank == 1:
        evaluate() if how == "evaluates" else wait_forever()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.2)
torch.distributed.barrier()
"""

FLAGS = ("--hang-factor", "2", "--max-restarts", "1")
CONF = f"{QUICK},hang_min=2"


def start(job: Job, how: str, members: int, *flags: str) -> list[Agent]:
    script = job.directory / "hanging.py"
    script.write_text(SCRIPT)
    nproc = ("--nproc-per-node", str(2 // members))
    return [
        job.start(
            "ab"[index], *FLAGS, *nproc, *flags, nnodes=str(members), conf=CONF,
            script=[str(script), str(job.directory), how],
        )
        for index in range(members)
    ]  # fmt: skip


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.nightly), "zygote"])
def test_the_rank_that_hangs_is_named_and_not_the_one_that_waits_for_it(job: Job, method: str) -> None:
    (agent,) = start(job, "hangs", 1, "--start-method", method)
    assert agent.exit_code() == ExitCode.SUCCEEDED, agent.output
    (failure,) = [each for each in agent.events if each["event"] == "failure" and each["scope"] == "member"]
    assert (failure["rank"], failure["reason"]) == (1, "Hang")
    assert "rank 1 is in wait_forever (hanging.py:" in failure["message"]
    assert failure["traceback"].startswith("Stacks of rank 1:\n")


def test_the_member_whose_rank_hangs_restarts_the_job_and_the_other_waits_for_it(job: Job) -> None:
    agents = start(job, "hangs", 2, "--start-method", "zygote")
    assert [agent.exit_code() for agent in agents] == [ExitCode.SUCCEEDED] * 2, job.logs
    named = {each["rank"] for agent in agents for each in agent.events if each["event"] == "failure"}
    assert named == {1}, job.logs


def test_a_hang_that_is_only_reported_is_told_until_the_next_step(job: Job) -> None:
    agents = start(job, "hangs for a while", 2, "--start-method", "zygote", "--hang-action", "report")

    def told() -> dict[str, HangValue]:
        found = {name: job.client.get(job.keys.hang(name)) for name in "ab"}
        return {name: HangValue.from_json(kv.value) for name, kv in found.items() if kv is not None}

    eventually(lambda: len(told()) == 2, 120, what=lambda: f"both tell what they see: {job.logs}")
    hangs = told()
    culprit = next(hang for hang in hangs.values() if hang.ranks)
    other = next(hang for hang in hangs.values() if not hang.ranks)
    assert (culprit.ranks, culprit.certain, culprit.reports_only) == ((1,), True, True)
    assert "rank 1 is in wait_forever (hanging.py:" in culprit.why
    assert (other.waits_in, other.certain) == ("all_reduce", False)
    (job.directory / "found").touch()
    eventually(lambda: not told(), 60, what=lambda: f"the hang is over: {job.logs}")
    assert [agent.exit_code() for agent in agents] == [ExitCode.SUCCEEDED] * 2, job.logs


def test_an_evaluation_is_reported_and_not_killed(job: Job) -> None:
    (agent,) = start(job, "evaluates", 1, "--start-method", "zygote")
    eventually(lambda: "not restarting" in agent.output, 120, what=lambda: f"the pause is noticed: {agent.output}")
    (job.directory / "evaluated").touch()
    assert agent.exit_code() == ExitCode.SUCCEEDED, agent.output
    assert [each for each in agent.events if each["event"] == "failure"] == []
    hang = next(each for each in agent.events if each["event"] == "hang")
    assert (hang["ranks"], hang["restarts"]) == ([1], False), "the others wait for it, but it does something"
