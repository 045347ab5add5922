"""A planned change costs no step of a script that saves on SIGTERM or calls `checkpoint_wanted`: all its ranks save at
the same step. test_planned_changes.py has what needs no torch."""

from __future__ import annotations

import collections
import json
import signal
import sys
from collections.abc import Sequence

import pytest
from elasticjob_runtime.contract import ExitCode, PlanReason, SpecValue

from hack.support import eventually
from tests.integration.runtime.agents import Agent, Job

TRAINING = """
import json, os, pathlib, random, signal, sys, time
import torch, torch.distributed as dist
from elasticjob_runtime.training import checkpoint_wanted, load_checkpoint, report_progress, save_checkpoint

here, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
member, round = os.environ["ELASTICJOB_MEMBER_ID"], int(os.environ["ELASTICJOB_ROUND"])
saves_on_sigterm, signalled = mode.startswith("SIGTERM"), []
if saves_on_sigterm:
    signal.signal(signal.SIGTERM, lambda *_: signalled.append(True))
state = load_checkpoint(here / "checkpoints")  # before the process group forms, when a stale one is most likely
step = state["step"] if state else 0
dist.init_process_group("gloo")
rank = dist.get_rank()
ledger = (here / f"ledger-{member}").open("a", buffering=1)
pace = random.Random(rank)
while True:
    step += 1
    time.sleep(pace.choice([0.0, 0.001, 0.02, 0.05]))
    flags = torch.tensor([float((here / "finish").exists()), float(bool(signalled))])
    dist.all_reduce(flags)
    time.sleep(pace.choice([0.0, 0.001, 0.02]))
    while mode == "late" and rank == 1 and not (here / "go").exists():
        time.sleep(0.01)
    if saves_on_sigterm:
        assert not checkpoint_wanted(), "who handles SIGTERM is not asked as well"
        wanted = bool(flags[1])  # all ranks save together
    else:
        wanted = checkpoint_wanted()
    ledger.write(json.dumps({"round": round, "rank": rank, "step": step, "wanted": wanted}) + "\\n")
    if wanted:
        if saves_on_sigterm:
            dist.barrier()
        if rank == 0:
            time.sleep(0.5)
            save_checkpoint(here / "checkpoints", {"step": step}, step=step)
        if saves_on_sigterm:
            os._exit(int(mode.split()[1]))  # the others do not wait for rank 0
        if mode == "exits":
            sys.exit(0)
    report_progress(step)
    if flags[0]:
        break
"""

FORKED = ("--start-method", "zygote", "--preload", "json")


def start(job: Job, names: str, *flags: str, mode: str = "calls", nnodes: str = "2:3") -> list[Agent]:
    script = job.directory / "training.py"
    script.write_text(TRAINING)
    path = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command = [str(script), str(job.directory), mode]
    return job.start_all(names, *FORKED, *flags, nnodes=nnodes, script=command, environment=path)


def ledger(job: Job, members: Sequence[str], round_number: int) -> dict[int, list[tuple[int, bool]]]:
    """Rank -> the steps it did in this round, each with what `checkpoint_wanted` returned."""
    found: dict[int, list[tuple[int, bool]]] = collections.defaultdict(list)
    for member in members:
        file = job.directory / f"ledger-{member}"
        for line in file.read_text().splitlines() if file.exists() else ():
            entry = json.loads(line)
            if entry["round"] == round_number:
                found[entry["rank"]].append((entry["step"], entry["wanted"]))
    return found


def wait_for_steps(job: Job, members: Sequence[str], *, after: int = 0, nproc: int = 1, saves: bool = True) -> int:
    """Waits for a round later than `after` in which these members have done a few steps; returns its number."""

    def round_with_steps() -> int:
        plan = job.plan
        assert plan is not None
        assert plan.round > after, f"still plan {plan.round}"
        assert plan.size == len(members), f"plan {plan.round} has {plan.size} members"
        ranks = ledger(job, members, plan.round)
        assert len(ranks) == len(members) * nproc
        assert all(len(steps) > 3 for steps in ranks.values()), "not all ranks are training"
        assert not saves or all(job.members[name].saves for name in members), "not all are known to save"
        return plan.round

    return eventually(round_with_steps, 90.0, what=f"{members} train; logs:\n{job.logs}")


def assert_all_saved_at_the_same_step(job: Job, members: Sequence[str], before: int, after: int) -> None:
    """`members`: those of round `before`. No step is lost: round `after` begins with the next one."""
    ranks = ledger(job, members, before)
    saved = {step for steps in ranks.values() for step, wanted in steps if wanted}
    assert len(saved) == 1, f"{saved}; {ranks}; {job.logs}"
    step = saved.pop()
    assert all((step, True) in steps for steps in ranks.values()), f"{ranks}; {job.logs}"
    continued = ledger(job, list("abc"), after)
    assert {steps[0][0] for steps in continued.values()} == {step + 1}, job.logs
    plan = job.plan
    assert plan is not None
    assert plan.restart_count == 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("mode", "nproc", "leaver"),
    [
        ("calls", 1, "leader"),
        ("SIGTERM 0", 1, "leader"),
        pytest.param("exits", 2, "other", marks=pytest.mark.nightly),
        pytest.param("SIGTERM 143", 1, "other", marks=pytest.mark.nightly),
    ],
)
def test_no_planned_change_loses_a_step(job: Job, mode: str, nproc: int, leaver: str) -> None:
    """A member joins, it is drained, its place is filled again, and one leaves."""
    flags = ("--nproc-per-node", str(nproc))
    start(job, "a b", *flags, mode=mode)
    before = wait_for_steps(job, "ab", nproc=nproc)
    start(job, "c", *flags, mode=mode)
    after = wait_for_steps(job, "abc", after=before, nproc=nproc)
    assert after == before + 1
    assert_all_saved_at_the_same_step(job, "ab", before, after)

    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=2, draining=["c"], generation=1).to_json())
    before, after = after, wait_for_steps(job, "ab", after=after, nproc=nproc)
    assert_all_saved_at_the_same_step(job, "abc", before, after)
    job.client.put(job.keys.spec, SpecValue(min=2, max=3, wanted=3, generation=2).to_json())
    before, after = after, wait_for_steps(job, "abc", after=after, nproc=nproc)
    assert_all_saved_at_the_same_step(job, "ab", before, after)

    plan = job.plan
    assert plan is not None
    leaves = next(agent for agent in job.agents if (agent.name == plan.leader) == (leaver == "leader"))
    leaves.signal(signal.SIGTERM)
    assert leaves.exit_code() == ExitCode.TERMINATED
    stay = [agent for agent in job.agents if agent is not leaves]
    before, after = after, wait_for_steps(job, [agent.name for agent in stay], after=after, nproc=nproc)
    assert_all_saved_at_the_same_step(job, "abc", before, after)
    plan = job.plan
    assert plan is not None
    assert plan.reason is PlanReason.MEMBER_LEFT
    job.finish()
    assert [agent.exit_code() for agent in stay] == [0, 0], job.logs


@pytest.mark.torch
def test_the_only_member_saves_before_it_leaves_with_a_rank_that_first_calls_after_the_request(job: Job) -> None:
    (agent,) = start(job, "a", "--nproc-per-node", "2", mode="late", nnodes="1:1")
    eventually(lambda: "a" in job.members and job.members["a"].saves, 90.0, what="rank 0 is known to save")
    agent.signal(signal.SIGTERM)
    eventually(lambda: "the workers get time to save" in agent.output, what="rank 0 is asked")
    (job.directory / "go").touch()
    assert agent.exit_code() == ExitCode.TERMINATED
    start(job, "a", "--nproc-per-node", "2", mode="late", nnodes="1:1")
    assert_all_saved_at_the_same_step(job, "a", 1, wait_for_steps(job, "a", after=1, nproc=2))
