"""What scripts do beyond training: it works in a worker forked from the zygote as it does under torchrun, on the torch
installed."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from elasticjob_runtime.contract import PEER_LOST

from hack.support import eventually
from tests.integration.runtime.agents import SOURCE, Job

pytestmark = pytest.mark.torch

TORCHRUN = "torch.distributed.run"
ELASTICRUN = "elasticjob_runtime"


@dataclasses.dataclass
class Run:
    """One launcher on one machine, with its output in a file."""

    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def ends(self, timeout: float = 120.0) -> int:
        eventually(lambda: self.process.poll() is not None, timeout, 0.1, f"it ends; see {self.log}")
        return int(self.process.returncode)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    runs: list[Run] = []

    def started(
        script: str,
        *flags: str,
        launcher: str = ELASTICRUN,
        stdin: str = "",
        arguments: Sequence[str] = (),
        **environment: str,
    ) -> Run:
        path = tmp_path / "script.py"
        path.write_text(script)
        log = tmp_path / f"log-{launcher}"
        given, what = tmp_path / "stdin", [] if "--no-python" in flags else [str(path)]
        given.write_text(stdin)
        command = [sys.executable, "-m", launcher, "--standalone", *flags, *what, *arguments]
        variables = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "FOUND": str(tmp_path / f"found-{launcher}"),
            **environment,
        }
        with log.open("wb") as output, given.open("rb") as source:
            process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdin=source, stdout=output, stderr=output)
        runs.append(Run(process, log))
        return runs[-1]

    yield started
    for run in runs:
        run.process.kill()
        run.process.wait()


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


RECORDED = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

def main():
    raise ValueError("no such data")

if __name__ == "__main__":
    (record(main) if sys.argv[1] == "record" else main)()
"""


def error_file(folder: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(folder.glob("*/attempt_*/0/error.json")).read_text())
    return found


def test_the_error_file_is_torchelastics_with_record_and_without(start: Start, tmp_path: pathlib.Path) -> None:
    """And torch's own reader takes it."""
    files: dict[str, dict[str, Any]] = {}
    for launcher, how in [(TORCHRUN, "record"), (ELASTICRUN, "record"), (ELASTICRUN, "plain")]:
        logs = tmp_path / f"logs-{launcher}-{how}"
        run = start(RECORDED, f"--log-dir={logs}", launcher=launcher, arguments=[how])
        assert run.ends() == 1
        files[f"{launcher} {how}"] = error_file(logs)
        if launcher == ELASTICRUN:
            assert "rank 0" in run.output
            assert "ValueError: no such data" in run.output
    messages = {name: file["message"] for name, file in files.items()}
    assert {message["message"] for message in messages.values()} == {"ValueError: no such data"}
    assert {tuple(sorted(message["extraInfo"])) for message in messages.values()} == {("py_callstack", "timestamp")}
    for message in messages.values():
        assert message["extraInfo"]["timestamp"].isdigit()
        assert 'raise ValueError("no such data")' in message["extraInfo"]["py_callstack"]
    read = (
        "import glob, sys; from torch.distributed.elastic.multiprocessing.errors import ProcessFailure\n"
        "f = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=sys.argv[1]); print(f.message['message'], "
        "f.timestamp > 0)"
    )
    path = next((tmp_path / f"logs-{ELASTICRUN}-plain").glob("*/attempt_*/0/error.json"))
    said = subprocess.run(
        [sys.executable, "-c", read, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout.strip() == "ValueError: no such data True"


VICTIMS = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    for step in range(100000):
        if rank == 1 and step == 3:
            raise ValueError("no such data")
        dist.all_reduce(torch.ones(1))
finally:
    dist.destroy_process_group()
    if rank == 1 and sys.argv[1] == "late":
        time.sleep(0.15)  # the others have told their failures before this rank's exception gets to the top
"""


@pytest.mark.parametrize("when", ["at once", "late"])
def test_the_failure_that_is_told_is_the_cause_and_not_a_peer_that_lost_it(start: Start, when: str) -> None:
    run = start(VICTIMS, "--nproc-per-node=3", arguments=[when])
    assert run.ends() == 1
    (told,) = [line for line in run.output.splitlines() if "the job failed: rank" in line and "stopping" not in line][
        :1
    ]
    assert "rank 1" in told, run.output
    assert "ValueError: no such data" in told


@pytest.mark.parametrize("when", ["at once", "late"])
def test_the_cause_is_told_across_members(job: Job, when: str) -> None:
    script = job.directory / "victims.py"
    script.write_text(VICTIMS)
    for name in "abc":
        job.start(name, "--start-method", "zygote", "--max-restarts", "0", nnodes="3", script=[str(script), when])
    codes = [agent.ends(120) for agent in job.agents]
    assert codes == [1, 1, 1], job.logs
    outcome = job.outcome
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure["rank"] == 1, job.logs
    assert outcome.failure["reason"] != PEER_LOST
    assert outcome.message.startswith(f"rank 1 on {outcome.failure['member']} failed: ValueError: no such data")
    assert 'raise ValueError("no such data")' in outcome.failure["traceback"]


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


SIGNALS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda number, frame: (print("saved", flush=True), sys.exit(0)))
open("ready", "w").close()
while True:
    time.sleep(0.1)
"""


def test_a_signal_to_the_agent_reaches_the_scripts_handler(start: Start, tmp_path: pathlib.Path) -> None:
    run = start(SIGNALS)
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(signal.SIGUSR1)
    assert run.ends() == 0, run.output
    assert "saved" in run.output


LEAVING = """
import signal, subprocess, sys, time

loader = subprocess.Popen(["sleep", "600"])

def save(number, frame):
    time.sleep(0.2)
    print("saved on", signal.Signals(number).name, "beside", loader.poll(), flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR2, save)
open("ready", "w").close()
try:
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    save(signal.SIGINT, None)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR2, 0)])
def test_a_script_that_saves_on_a_signal_gets_that_signal_and_keeps_its_data_loaders(
    start: Start, tmp_path: pathlib.Path, number: signal.Signals, code: int
) -> None:
    """torch raises in the main thread, in the midst of what the script's handler does, when a signal ends a
    DataLoader's process."""
    run = start(LEAVING, "--start-method=spawn")
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(number)
    assert run.ends() == code, run.output
    assert f"saved on {number.name} beside None" in run.output


@pytest.mark.parametrize("flags", [(), ("--signals-to-handle=SIGINT,SIGTERM",)])
def test_a_terminal_that_closes_ends_no_job_under_nohup(
    start: Start, tmp_path: pathlib.Path, flags: Sequence[str]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = start(LEAVING, "--start-method=spawn", *flags)
    finally:
        signal.signal(signal.SIGHUP, before)
    eventually((tmp_path / "ready").exists, 90, 0.1)
    run.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    run.process.send_signal(signal.SIGTERM)
    assert run.ends() == 143, run.output
    assert "saved on SIGTERM" in run.output


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


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("import sys; sys.exit(300)", 44, "exit code 44"),
        ("raise KeyboardInterrupt", -2, "killed by SIGINT"),
        (
            "import sys\ndef hook(*_): raise OSError('hook')\nsys.excepthook = hook\nraise ValueError('first')",
            1,
            "ValueError: first",
        ),
        ("import threading\nthreading.Thread(target=lambda: 1 / 0).start()", 0, "ZeroDivisionError"),
        (
            "import os\nif os.fork() == 0: raise ValueError('in a child')\nos.wait(); raise KeyError('mine')",
            1,
            "KeyError: 'mine'",
        ),
    ],
)
def test_ends(start: Start, script: str, code: int, words: str) -> None:
    run = start(script)
    assert run.ends() == (1 if code else 0), run.output
    assert words in run.output
    if code == 1:
        assert words in next(line for line in run.output.splitlines() if "a worker process failed:" in line)


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
