"""Whatever is killed, no process that a worker process started outlives its agent, and no temporary file stays."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from hack.support import eventually
from tests.integration.runtime.agents import SOURCE, is_alive, parents
from tests.integration.runtime.small_torch import write_small_torch

SCRIPT = """
import json, multiprocessing, os, subprocess, sys, time

sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]

def load(pids):
    pids.put(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    pids = fork.SimpleQueue()
    loader = fork.Process(target=load, args=(pids,)); loader.start()
    spawned = spawn.Process(target=time.sleep, args=(600,)); spawned.start()
    own_session = subprocess.Popen(sleep, start_new_session=True)
    hidden = subprocess.Popen(["sh", "-c", "exec env -i $0 -S -c 'import time; time.sleep(600)'", sys.executable])
    command = ["sh", "-c", "(sleep 600 & echo $! >&3; wait) 3>&1"]
    shell = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    grandchild = int(shell.stdout.readline())
    found = {"worker": os.getpid(), "loader": pids.get(), "spawned": spawned.pid, "own session": own_session.pid,
             "hidden": hidden.pid, "shell": shell.pid, "grandchild": grandchild}
    rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    with open(f"pids-{rank}-{restart}.new", "w") as file:
        json.dump(found, file)
    os.rename(f"pids-{rank}-{restart}.new", f"pids-{rank}-{restart}")
    while not os.path.exists(f"go-{restart}"):
        time.sleep(0.05)
    for process in (loader, spawned, own_session, hidden, shell):
        process.terminate()
    os.kill(grandchild, 15)
    # The rank that fails first has the other one killed, which must have ended its own processes by then.
    open(f"done-{rank}-{restart}", "w").close()
    while not all(os.path.exists(f"done-{each}-{restart}") for each in range(2)):
        time.sleep(0.05)
    sys.exit(0 if os.path.exists("succeed") else 3)
"""


@dataclasses.dataclass
class Run:
    """An agent with two worker processes."""

    folder: pathlib.Path
    process: subprocess.Popen[bytes]
    scratch: pathlib.Path
    """Its directory for temporary files."""

    def workers(self, restart: int = 0) -> dict[str, int]:
        """The processes that rank 0 and rank 1 started, by name, once they run."""
        paths = [self.folder / f"pids-{rank}-{restart}" for rank in range(2)]

        def all_started() -> bool:
            assert all(path.exists() for path in paths), self.log
            return True

        eventually(all_started, 60, 0.1, "worker processes run")
        found = {f"{path.name} {name}": pid for path in paths for name, pid in json.loads(path.read_text()).items()}
        assert all(is_alive(pid) for pid in found.values()), found
        return found

    @property
    def reaper(self) -> int:
        """Its pid; 0: there is none at present."""
        return next(iter(self._children("reaper")), 0)

    @property
    def zygote(self) -> int:
        """Its pid. Its forks have the same command line and higher pids."""
        return min(self._children("zygote.server"))

    def _children(self, of: str) -> list[int]:
        found = []
        for pid in (pid for pid, parent in parents().items() if parent == self.process.pid and is_alive(pid)):
            with contextlib.suppress(OSError):
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found += [pid] if f"workers.{of} ".encode() in line else []
        return sorted(found)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def temporary(self) -> list[str]:
        """The agent's entries in its directory for temporary files."""
        return [path.name for path in self.scratch.iterdir() if path.name.startswith("elasticrun")]

    def kill_and_expect_all_to_end(self, processes: dict[str, int]) -> None:
        """Kills the agent by SIGKILL."""
        self.process.kill()
        self.process.wait()
        eventually(lambda: not [name for name, pid in processes.items() if is_alive(pid)], 30, 0.1, "all processes end")
        eventually(lambda: not self.temporary, 30, 0.1, "its temporary directory is removed")


@pytest.fixture(params=["zygote", "spawn"])
def run(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    (tmp_path / "train.py").write_text(SCRIPT)
    scratch = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))  # a short name
    command = [sys.executable, "-m", "elasticjob_runtime", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    environment = {**os.environ, "PYTHONPATH": f"{write_small_torch(tmp_path)}:{SOURCE}", "TMPDIR": str(scratch)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--start-method={request.param}", "train.py"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    yield Run(tmp_path, process, scratch)
    (tmp_path / "succeed").touch()
    for restart in range(4):
        (tmp_path / f"go-{restart}").touch()
    process.kill()
    process.wait()
    shutil.rmtree(scratch)


def test_a_killed_agent_leaves_nothing_behind(run: Run) -> None:
    workers = run.workers()
    assert run.temporary
    run.kill_and_expect_all_to_end(workers)


@pytest.mark.parametrize("run", ["spawn"], indirect=True)
def test_a_killed_reaper_is_replaced(run: Run) -> None:
    workers = run.workers()
    old = run.reaper
    os.kill(old, signal.SIGKILL)
    eventually(lambda: run.reaper not in (0, old), 30)
    assert all(is_alive(pid) for pid in workers.values())
    run.kill_and_expect_all_to_end(workers)


@pytest.mark.parametrize("run", ["zygote"], indirect=True)
def test_a_killed_zygote_is_replaced_and_its_worker_processes_keep_running(run: Run) -> None:
    """Then a worker process fails, the new zygote forks its replacement, and the agent is killed."""
    workers = run.workers()
    os.kill(run.zygote, signal.SIGKILL)
    eventually(lambda: "lost the zygote" in run.log, 30)
    assert all(is_alive(pid) for pid in workers.values())
    (run.folder / "go-0").touch()
    again = run.workers(restart=1)
    eventually(lambda: not [name for name, pid in workers.items() if is_alive(pid)], 30, 0.1, "the old ones end")
    run.kill_and_expect_all_to_end(again)
