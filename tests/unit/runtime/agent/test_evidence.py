"""What an agent sees of real processes that take no step."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.agent.evidence import WATCH_SECONDS, Investigation, Suspect
from elasticjob_runtime.contract.collectives import Call, calls_of
from elasticjob_runtime.membership.culprit import RankEvidence
from elasticjob_runtime.training import auto_progress, flight_recorder
from elasticjob_runtime.workers.linux import stat_fields

from hack.support import eventually

READY = "print('ready', flush=True)\n"
SLEEPS = f"import time\ndef waits():\n    time.sleep(1000)\n{READY}waits()\n"
WAITS_FOR_WORK = f"import time\nwait = time.sleep\n{READY}wait(1000)\n"
SPINS = f"{READY}while True: pass\n"
CHILD_SPINS = f"import subprocess, sys\n{READY}subprocess.run([sys.executable, '-c', 'while True: pass'])\n"
HANDLER = f"import sys; sys.path.insert(0, {str(pathlib.Path(auto_progress.__file__).parent)!r})\n"
HANDLER += "import auto_progress; auto_progress.write_stacks_on_signal(sys.argv[1])\n"


@contextlib.contextmanager
def running(folder: pathlib.Path, script: str) -> Iterator[Suspect]:
    error_file = str(folder / "error.json")
    source = folder / "script.py"
    source.write_text(script)
    command = [sys.executable, str(source), error_file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield Suspect(3, 0, process.pid, error_file)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its child, too


def look_at(suspect: Suspect, watch: float = 0.0) -> tuple[RankEvidence, str]:
    """Watches for `watch` seconds; a process has all the time that it needs to write its stack."""
    investigation = Investigation([suspect], 0.0, {})
    time.sleep(watch)
    if (found := investigation.tick(WATCH_SECONDS)) is None:
        found = eventually(lambda: investigation.tick(investigation.due), what="the stack is written")
    assert found is not None
    return found[3], investigation.stacks.get(3, "")


def look_until(suspect: Suspect, what: str, seen: Callable[[RankEvidence, str], bool]) -> RankEvidence:
    """It may not be there yet when it says that it is ready."""

    def look() -> RankEvidence | None:
        found, text = look_at(suspect)
        return found if seen(found, text) else None

    found = eventually(look, what=what)
    assert found is not None
    return found


def test_a_process_that_sleeps_shows_its_line(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, HANDLER + SLEEPS) as suspect:
        found = look_until(suspect, "it sleeps", lambda found, text: found.stack is not None and "in waits" in text)
        assert found.stack is not None
        assert (found.stack.collective, found.stack.place) == ("", "waits (script.py:5)")
        assert (found.accelerator, found.resends) == (False, frozenset())


def test_a_line_that_waits_for_work_of_others_says_nothing(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, HANDLER + WAITS_FOR_WORK) as suspect:
        found = look_until(suspect, "it waits", lambda _, text: "script.py" in text)
        assert found.stack is None


def test_a_process_without_a_handler_is_not_signalled(tmp_path: pathlib.Path) -> None:
    """The signal would end it."""
    with running(tmp_path, SLEEPS) as suspect:
        found = look_until(suspect, "it sleeps", lambda found, _: found.activity.is_none)
        assert found.stack is None


@pytest.mark.parametrize("script", [SPINS, CHILD_SPINS], ids=["itself", "a child"])
def test_a_process_that_computes_is_not_signalled(tmp_path: pathlib.Path, script: str) -> None:
    with running(tmp_path, HANDLER + script) as suspect:

        def computes() -> bool:
            found, text = look_at(suspect, watch=0.2)
            return not found.activity.is_none and not text

        eventually(computes, what="it has used time")


def test_a_stopped_process_is_seen_and_not_signalled(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, HANDLER + SLEEPS) as suspect:
        os.kill(suspect.pid, signal.SIGSTOP)
        eventually(lambda: stat_fields(suspect.pid)[0] == "T", what="it is stopped")
        found, text = look_at(suspect)
        assert (found.state, text) == ("T", "")


RECORDER = """
import os, sys, time
import torch, torch.distributed
sys.path.insert(0, {folder!r})
import flight_recorder
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
flight_recorder.serve(sys.argv[1])
torch.distributed.all_reduce(torch.ones(4))
print("ready", flush=True)
ctypes = __import__("ctypes")
ctypes.PyDLL(None).usleep(1000_000_000) if {holds} else time.sleep(0)
raise ValueError("the script is wrong")
"""


def recorder_script(*, holds: bool) -> str:
    folder = str(pathlib.Path(flight_recorder.__file__).parent)
    save = "import atexit; atexit.register(flight_recorder.save_at_exit, sys.argv[1], os.getpid())\n"
    return RECORDER.format(folder=folder, holds=holds).replace("store =", f"{save}store =")


@pytest.mark.torch
def test_the_flight_recorder_answers_while_the_interpreter_is_held(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, recorder_script(holds=True)) as suspect:
        found, _ = look_at(suspect)
        assert found.calls == {"default_pg": [Call(1, "all_reduce [[4]] Float", over=True)]}


@pytest.mark.torch
def test_a_process_that_ends_with_an_exception_leaves_its_flight_recorder(tmp_path: pathlib.Path) -> None:
    """As torch's own tool reads it, and as an agent does, which loads no pickle."""
    source, error_file = tmp_path / "script.py", str(tmp_path / "error.json")
    source.write_text(recorder_script(holds=False))
    done = subprocess.run([sys.executable, str(source), error_file], capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: the script is wrong\n"), "torch's server says nothing"
    assert "erver" not in done.stderr
    calls = calls_of(json.loads(pathlib.Path(flight_recorder.json_file(error_file)).read_text()))
    assert calls == {"default_pg": [Call(1, "all_reduce [[4]] Float", over=True)]}
    pathlib.Path(flight_recorder.pickle_file(error_file)).rename(tmp_path / "recorder_0")
    analyze = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "recorder_"]
    shown = subprocess.run(analyze, capture_output=True, check=False, text=True)
    assert shown.returncode == 0, shown.stderr


def test_a_file_system_that_hangs_does_not_hold_the_agent(tmp_path: pathlib.Path) -> None:
    """A FIFO, in place of the script's file on it: whoever opens it waits."""
    with running(tmp_path, HANDLER + SLEEPS) as suspect:
        look_until(suspect, "it sleeps", lambda found, _: found.stack is not None)
        source = tmp_path / "script.py"
        source.unlink()
        os.mkfifo(source)
        linecache.clearcache()
        found, text = look_at(suspect)
        assert "in waits" in text
        assert found.stack is None
        os.close(os.open(source, os.O_RDWR | os.O_NONBLOCK))  # its thread goes on
