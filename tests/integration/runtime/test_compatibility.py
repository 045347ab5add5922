"""What scripts do beyond training works in a worker forked from the zygote as it does under torchrun."""

from __future__ import annotations

import json
import pathlib
import signal
import tempfile
from collections.abc import Sequence

import pytest

from tests.integration.runtime.standalone import ELASTICRUN, TORCHRUN, Launch

pytestmark = pytest.mark.torch


EVERYTHING = """
import atexit, json, multiprocessing, os, pickle, signal, sys, time

class Squares:
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor(float(index * index))

class Box:
    def __init__(self, content): self.content = content

def square(queue, number):
    queue.put((number * number, __name__))

def sleeps(queue):
    from torch.distributed.elastic import timer
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=0.5):
        time.sleep(600)

def by(context):
    queue = context.SimpleQueue()
    process = context.Process(target=square, args=(queue, 7)); process.start()
    answer = queue.get(); process.join()
    return answer, process.exitcode

if __name__ == "__main__":  # spawned processes do without torch, which takes seconds to import
    import torch
    import torch._dynamo
    from torch.distributed.elastic import events, metrics, timer
    from torch.utils.data import DataLoader
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
    received = []
    signal.signal(signal.SIGUSR2, lambda number, frame: received.append(number))
    os.kill(os.getpid(), signal.SIGUSR2)
    found["signals"] = received
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


def test_a_script_behaves_as_under_torchrun(launch: Launch, tmp_path: pathlib.Path) -> None:
    runs = {
        launcher: launch(EVERYTHING, launcher=launcher, arguments=["--an", "argument"])
        for launcher in (TORCHRUN, ELASTICRUN)
    }
    for run in runs.values():
        assert run.exit_code(240) == 0, run.output
    theirs, ours = (json.loads((tmp_path / f"found-{launcher}0").read_text()) for launcher in runs)
    assert ours == theirs
    assert ours["timer"] == -signal.SIGKILL
    assert ours["loader"] == [float(x * x) for x in range(8)]
    assert "exit function ran on rank 0" in runs[ELASTICRUN].output


def test_a_script_may_exec_another_program(launch: Launch) -> None:
    run = launch(
        "import os, sys\n"
        "if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, os.environ['RANK']])\n"
        "print('became', sys.argv[1])\n",
        torch=False,
    )
    assert run.exit_code() == 0, run.output
    assert "became 0" in run.output


@pytest.mark.parametrize("flags", [("--start-method=zygote",), ("--start-method=spawn",)], ids=["zygote", "spawn"])
def test_a_script_reads_standard_input(launch: Launch, flags: Sequence[str]) -> None:
    run = launch("import sys\nprint('read', sys.stdin.read())", *flags, stdin="a question", torch=False)
    assert run.exit_code() == 0, run.output
    assert "read a question" in run.output


def test_any_program_runs_with_no_python(launch: Launch) -> None:
    run = launch(
        "",
        "--no-python",
        "--nproc-per-node=2",
        arguments=["sh", "-c", "echo rank $RANK says $(cat); test $RANK = 0 || exit 0"],
        stdin="so",
        torch=False,
    )
    assert run.exit_code() == 0, run.output
    assert "rank 0 says" in run.output
    assert "rank 1 says" in run.output


def test_the_temporary_directory_may_have_a_long_name(launch: Launch, tmp_path: pathlib.Path) -> None:
    """The path of a Unix socket is limited to 108 bytes."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    run = launch(
        "import os; print('socket', os.path.exists(os.environ['ELASTICJOB_AGENT_SOCKET']))",
        "--start-method=spawn",
        torch=False,
        TMPDIR=str(long),
    )
    assert run.exit_code() == 0, run.output
    assert "socket True" in run.output
    assert tempfile.gettempdir() != str(long)
