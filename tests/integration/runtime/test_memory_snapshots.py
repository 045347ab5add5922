"""All worker processes are killed at once, and the training continues from memory that their agents hold."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest

from hack.support import eventually
from tests.integration.runtime.agents import Job
from tests.integration.runtime.standalone import Launch

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = """
import os, pathlib, sys, time
import torch
import torch.distributed as dist
from elasticjob_runtime.training import load_checkpoint, save_checkpoint

folder, last, every = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
state = load_checkpoint(folder / "checkpoints", from_any_rank=len(sys.argv) > 4)
step = state["step"] if state else 0
total = state["total"] if state else torch.zeros(1000)
log = (folder / f"rank-{rank}").open("a", buffering=1)
log.write(f"begin {os.getpid()} {step}\\n")
while step < last:
    gradient = torch.full((1000,), float(step + 1)) / dist.get_world_size()
    dist.all_reduce(gradient)
    total += gradient
    step += 1
    if rank == 0:
        durable = bool(every) and step % every == 0
        save_checkpoint(folder / "checkpoints", {"step": step, "total": total}, durable=durable)
    log.write(f"step {step} {total[0].item():.0f}\\n")
    time.sleep(0.02)
"""
"""Saves after each step; every `every` steps on the disk, too. With another argument, loads from any rank."""


def lines(folder: pathlib.Path, rank: int, word: str) -> list[tuple[int, int]]:
    path = folder / f"rank-{rank}"
    text = path.read_text() if path.exists() else ""
    return [(int(one), int(two)) for name, one, two in map(str.split, text.splitlines()) if name == word]


def kill_all(folder: pathlib.Path, beginning: int, after: int) -> int:
    """Kills all worker processes of one beginning once they have done `after` further steps. Returns rank 0's last
    step."""

    def pids() -> list[int]:
        found = [lines(folder, rank, "begin") for rank in range(2)]
        assert [len(item) for item in found] == [beginning, beginning]
        return [item[-1][0] for item in found]

    def steps() -> list[tuple[int, int]]:
        return lines(folder, 0, "step")

    running = eventually(pids, 60.0, what="the worker processes run")
    done = len(steps())
    eventually(lambda: len(steps()) >= done + after, 60.0, 0.005, "they train")
    for pid in running:
        os.kill(pid, signal.SIGSTOP)  # at once: neither sees the other one's end
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return steps()[-1][0]


@pytest.mark.parametrize(
    "every", [pytest.param(0, id="no disk"), pytest.param(25, id="a disk every 25 steps", marks=pytest.mark.nightly)]
)
def test_training_continues_from_memory_when_all_worker_processes_are_killed(
    launch: Launch, tmp_path: pathlib.Path, every: int
) -> None:
    run = launch(
        SCRIPT, "--nproc-per-node", "2", "--max-restarts", "3", arguments=[str(tmp_path), "120", str(every)],
        OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    killed_after = [kill_all(tmp_path, beginning, 15) for beginning in (1, 2)]
    assert run.exit_code() == 0, run.output
    assert_continued(tmp_path, killed_after)
    assert (tmp_path / "checkpoints").exists() is bool(every)


def test_what_one_machine_has_in_memory_serves_the_ranks_of_another(job: Job, tmp_path: pathlib.Path) -> None:
    """Rank 0 saves with its agent, and the other rank's agent has nothing."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job.start_all(
        "a b",
        *("--max-restarts", "3", "--start-method", "zygote"),
        nnodes="2",
        script=[str(script), str(tmp_path), "120", "0", "any"],
        environment={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    killed_after = kill_all(tmp_path, 1, 15)
    assert [agent.exit_code(120) for agent in job.agents] == [0, 0], job.logs
    assert_continued(tmp_path, [killed_after])


def assert_continued(folder: pathlib.Path, killed_after: list[int]) -> None:
    for rank in range(2):
        begun = [step for _, step in lines(folder, rank, "begin")]
        assert begun[0] == 0
        for step, last in zip(begun[1:], killed_after, strict=True):
            assert step >= last, "no step is repeated that rank 0 had saved"
        assert begun == [step for _, step in lines(folder, 0, "begin")], "both ranks begin with the same step"
    assert lines(folder, 0, "step")[-1] == (120, sum(range(1, 121)))
