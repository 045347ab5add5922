"""What scripts do beyond training works in a worker forked from the zygote as it does under torchrun."""

from __future__ import annotations

import json
import pathlib
import signal
import tempfile
from collections.abc import Sequence

import pytest

from tests.integration.runtime.standalone import ELASTICRUN, TORCHRUN, Start

pytestmark = pytest.mark.torch


EVERYTHING = """
import atexit, json, multiprocessing, os, pickle, signal, sys, threading, time
import torch
import torch._dynamo
from torch.distributed.elastic import events, metrics, timer
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor(float(index * index))

class Box:
    def __init__(self, content): self.content = content

def square(queue, number):
    queue.put((number * number, __name__))

def sleeps(queue):
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=0.5):
        time.sleep(600)

def by(context):
    queue = context.SimpleQueue()
    process = context.Process(target=square, args=(queue, 7)); process.start()
    answer = queue.get(); process.join()
    return answer, process.exitcode

if __name__ == "__main__":
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    found = {"loader": sorted(float(x) for x in DataLoader(Squares(), num_workers=2, batch_size=None))}
    found["fork"], found["spawn"] = by(fork), by(spawn)
    child = os.fork()
    if child == 0:
        sys.exit(5)
    found["exit code of a fork"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found["pickled"] = pickle.loads(pickle.dumps(Box(3))).content, Box.__module__
    torch.manual_seed(1234)
    found["seeded"] = torch.rand(3).tolist()
    found["seeds"] = torch.initial_seed()
    heard = []
    signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    os.kill(os.getpid(), signal.SIGUSR2)
    found["signals"] = heard
    found["event"] = json.loads(events.Event("mine", events.EventSource.WORKER).serialize())["name"]
    events.record(events.Event("mine", events.EventSource.WORKER))
    class Handler(metrics.MetricHandler):
        def emit(self, data): found["metric"] = (data.group_name, data.name, data.value)
    metrics.configure(Handler(), "mine")
    metrics.put_metric("steps", 3, "mine")
    queue = spawn.Queue()
    server = timer.LocalTimerServer(queue, max_interval=0.1); server.start()
    hangs = spawn.Process(target=sleeps, args=(queue,)); hangs.start(); hangs.join()
    server.stop()
    found["timer"] = hangs.exitcode
    found["dynamo"] = torch._dynamo.is_compiling()
    name = os.path.basename(__file__)
    found["main"] = sys.modules["__main__"].__dict__ is globals(), sys.argv[1:], sys.orig_argv[-2:], name
    with open(os.environ["FOUND"] + os.environ["RANK"], "w") as file:
        json.dump(found, file)
    atexit.register(lambda: print("exit function ran on rank", os.environ["RANK"], flush=True))
"""


def test_what_scripts_do_works_as_under_torchrun(start: Start, tmp_path: pathlib.Path) -> None:
    runs = {
        launcher: start(EVERYTHING, launcher=launcher, arguments=["--an", "argument"])
        for launcher in (TORCHRUN, ELASTICRUN)
    }
    for run in runs.values():
        assert run.ends(240) == 0, run.output
    theirs, ours = (json.loads((tmp_path / f"found-{launcher}0").read_text()) for launcher in runs)
    assert ours == theirs
    assert ours["timer"] == -signal.SIGKILL
    assert ours["loader"] == [float(x * x) for x in range(8)]
    assert "exit function ran on rank 0" in runs[ELASTICRUN].output


TIMER = """
import os, time
import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=60):
    pass  # in time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with timer.expires(after=0.5, scope="a step"):
        time.sleep(600)
print("got through", flush=True)
"""


def test_a_worker_that_hangs_beyond_its_timer_is_ended_and_restarted(start: Start) -> None:
    run = start(TIMER, "--max-restarts=1", TORCHELASTIC_ENABLE_FILE_TIMER="1")
    assert run.ends() == 0, run.output
    assert "timer 'a step'" in run.output
    assert "killed by SIGKILL" in run.output
    assert run.output.count("got through") == 1


RANDOM = """
import json, os, random, sys
import numpy, torch
with open(os.environ["FOUND"], "a") as file:
    drawn = [random.random(), numpy.random.rand(), numpy.random.default_rng().random(), torch.rand(1).item()]
    file.write(json.dumps(drawn) + "\\n")
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "2")
"""


def test_random_numbers_differ_between_restarts_and_ranks(start: Start, tmp_path: pathlib.Path) -> None:
    run = start(RANDOM, "--nproc-per-node=2", "--max-restarts=2")
    assert run.ends() == 0, run.output
    rows = [json.loads(line) for line in (tmp_path / f"found-{ELASTICRUN}").read_text().splitlines()]
    assert len(rows) >= 4  # a rank may be ended before it comes to it, because the other one failed
    assert all(len(set(column)) == len(rows) for column in zip(*rows, strict=True))


AGAIN = """
import torch, torch.distributed as dist

for _ in range(4):
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    dist.destroy_process_group()
    print(f"of {int(ones)}", flush=True)
"""


def test_a_process_group_can_be_destroyed_and_made_again(start: Start) -> None:
    run = start(AGAIN, "--nproc-per-node=2")
    assert run.ends(180) == 0, run.output
    assert run.output.count("of 2") == 8


def test_a_script_may_become_another_program(start: Start) -> None:
    run = start(
        "import os, sys\n"
        "if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, os.environ['RANK']])\n"
        "print('became', sys.argv[1])\n"
    )
    assert run.ends() == 0, run.output
    assert "became 0" in run.output


@pytest.mark.parametrize("flags", [(), ("--start-method=spawn",)])
def test_a_script_reads_standard_input(start: Start, flags: Sequence[str]) -> None:
    run = start("import sys\nprint('heard', sys.stdin.read())", *flags, stdin="a question")
    assert run.ends() == 0, run.output
    assert "heard a question" in run.output


def test_a_program_that_is_not_python(start: Start) -> None:
    run = start(
        "",
        "--no-python",
        "--nproc-per-node=2",
        arguments=["sh", "-c", "echo rank $RANK says $(cat); test $RANK = 0 || exit 0"],
        stdin="so",
    )
    assert run.ends() == 0, run.output
    assert "rank 0 says" in run.output
    assert "rank 1 says" in run.output


def test_the_temporary_folder_may_have_a_long_name(start: Start, tmp_path: pathlib.Path) -> None:
    """A socket's name may not: 108 bytes."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    run = start(
        "import os; print('socket', os.path.exists(os.environ['ELASTICJOB_AGENT_SOCKET']))",
        "--start-method=spawn",
        TMPDIR=str(long),
    )
    assert run.ends() == 0, run.output
    assert "socket True" in run.output
    assert tempfile.gettempdir() != str(long)
