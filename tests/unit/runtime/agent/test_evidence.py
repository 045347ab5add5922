"""What an agent sees of real processes that take no step."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from elasticjob_runtime.agent.evidence import WATCH_SECONDS, Investigation, Suspect
from elasticjob_runtime.membership.culprit import RankEvidence
from elasticjob_runtime.training import auto_progress

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


def look_at(suspect: Suspect) -> tuple[RankEvidence, str]:
    """Without waiting for the seconds to pass; a process has all the time that it needs to write its stack."""
    investigation = Investigation([suspect], 0.0, {})
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
            investigation = Investigation([suspect], 0.0, {})
            time.sleep(0.2)
            found = investigation.tick(WATCH_SECONDS)
            return found is not None and not found[3].activity.is_none and investigation.stacks == {}

        eventually(computes, what="it has used time")


def test_a_stopped_process_is_seen_and_not_signalled(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, HANDLER + SLEEPS) as suspect:
        os.kill(suspect.pid, signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{suspect.pid}/stat")
        eventually(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", what="it is stopped")
        found, text = look_at(suspect)
        assert (found.state, text) == ("T", "")
