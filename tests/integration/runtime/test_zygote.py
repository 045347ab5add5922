"""The launcher with a real zygote, and a small package in torch's place: what is preloaded, and what becomes of a
zygote in trouble."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import elasticjob_runtime
import pytest
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.process import Command, WorkerSpec
from elasticjob_runtime.workers.zygote.launcher import ZygoteLauncher
from elasticjob_runtime.workers.zygote.preload import ImportVerdicts

from tests.integration.runtime.agents import lives
from tests.integration.runtime.subreaper import subreaper

MODULES = {
    "torch/__init__.py": """
from torch import cuda, distributed
class Generator:
    def seed(self): pass
default_generator = Generator()
""",
    "torch/cuda.py": "started = False\ndef is_initialized(): return started\n",
    "torch/distributed.py": """
import socket
class TCPStore:
    def __init__(self, host, port, **_):
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.server.bind((host, port)); self.server.listen()
""",
    "plain.py": "",
    "package/__init__.py": "",
    "package/threads.py": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), "
    "daemon=True).start()\n",
    "package/rest.py": "",
    "drags.py": "import package.threads\n",
    "touches_gpu.py": "import torch.cuda\ntorch.cuda.started = True\n",
    "crashes.py": "import os, signal\nif 'A_WORKER' not in os.environ: os.kill(os.getpid(), signal.SIGSEGV)\n",
    "knows_its_rank.py": "import os\nRANK = int(os.environ.get('RANK', 0))\n",
    "starts_a_process.py": "import subprocess\nPROCESS = subprocess.Popen(['sleep', '600'])\n",
    "connects.py": "import socket\nSERVER = socket.create_server(('127.0.0.1', 0))\nCLIENT = socket.create_connection(SERVER.getsockname())\n",  # noqa: E501
    "locks.py": "import multiprocessing\nLOCK = multiprocessing.get_context('fork').RLock()\n",
    "broken.py": "raise RuntimeError('not here')\n",
    "last.py": "",
}

NAMES = [
    "plain",
    "package",
    "package.threads",
    "package.rest",
    "drags",
    "touches_gpu",
    "crashes",
    "knows_its_rank",
    "starts_a_process",
    "connects",
    "locks",
    "last",
]

SCRIPT = f"""
import json, os, sys
warm = [name for name in {NAMES!r} if name in sys.modules]
forked = "elasticjob_runtime.workers.zygote.script" in sys.modules
import plain, package.threads, package.rest, drags, touches_gpu, crashes, knows_its_rank
import starts_a_process, connects, locks, last
starts_a_process.PROCESS.kill()
rank, nice = knows_its_rank.RANK, os.getpriority(os.PRIO_PROCESS, 0)
print(json.dumps({{"warm": warm, "forked": forked, "pid": os.getpid(), "rank": rank, "nice": nice}}), flush=True)
try:
    import broken
except RuntimeError:
    pass
"""


class Bench:
    """A launcher, and an agent's loop for it."""

    def __init__(self, folder: pathlib.Path, modules: dict[str, str]) -> None:
        self.folder = folder
        self.packages = folder / "site-packages"
        for name, text in modules.items():
            path = self.packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (folder / "script.py").write_text(SCRIPT)
        source = str(pathlib.Path(elasticjob_runtime.__file__).parents[1])
        self.environment = {**os.environ, "PYTHONPATH": f"{self.packages}:{source}"}
        self.command = Command(program=[sys.executable, "-u"], arguments=[str(folder / "script.py")])
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port: int = server.getsockname()[1]
        self.event_loop = EventLoop()
        self._launcher: ZygoteLauncher | None = None
        self._numbers = 0

    def launcher(self, *, preload: list[str], waits: bool = False) -> ZygoteLauncher:
        self._launcher = ZygoteLauncher(
            self.command,
            1,
            self.environment,
            self.event_loop,
            preload=preload,
            ports=[self.port],
            on_ready=lambda: None,
            learn_after=0.5,
            waits_for_imports=waits,
        )
        return self._launcher

    def run_until(self, predicate: Callable[[], Any], timeout: float = 60.0, what: str = "") -> Any:
        end = time.monotonic() + timeout
        while not (found := predicate()):
            assert time.monotonic() < end, what
            self.event_loop.wait(0.05)
            if self._launcher is not None:
                self._launcher.tick(time.monotonic())
        return found

    def start(self, **variables: str) -> tuple[list[int | OSError], pathlib.Path]:
        """What `start` tells (later, perhaps), and where the worker's output goes. `variables`: of the worker."""
        assert self._launcher is not None
        self._numbers += 1
        output = self.folder / f"output-{self._numbers}"
        told: list[int | OSError] = []
        with output.open("wb") as file:
            duplicate = os.dup(file.fileno())
        environment = {**self.environment, "A_WORKER": "yes", **variables}
        spec = WorkerSpec(
            command=self.command,
            environment=environment,
            local_rank=0,
            rank=0,
            error_file=self.folder / "error",
            stdout=duplicate,
            stderr=None,
        )

        def started(result: int | OSError) -> None:
            os.close(duplicate)
            told.append(result)

        self._launcher.start(spec, started)
        return told, output

    def worker(self, **variables: str) -> Any:
        """What a worker says that is started now."""
        assert self._launcher is not None
        told, output = self.start(**variables)
        pid = self.run_until(lambda: told)[0]
        self._launcher.prefork_next()
        self.run_until(lambda: "Z" in pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0])
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return json.loads(output.read_text().splitlines()[0])

    def learns(self) -> None:
        """Until a zygote that knows the script's imports has taken over, and has parked a worker."""
        launcher = self._launcher
        assert launcher is not None

        def learned() -> bool:
            idle = not launcher._zygotes.is_learning and not launcher._modules.untried()
            return idle and launcher._zygotes.current is not None and bool(launcher._zygotes.current.preforked)

        self.run_until(learned, what="it learns")

    def zygotes(self) -> list[int]:
        """This launcher's."""
        assert self._launcher is not None
        return [
            zygote.pid
            for zygote in (self._launcher._zygotes.current, self._launcher._zygotes.successor)
            if zygote is not None
        ]

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.close()
        self.event_loop.close()


@pytest.fixture
def bench(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.PRELOAD", ("torch",))
    with subreaper():
        made = Bench(tmp_path, MODULES)
        yield made
        made.close()


def test_one_module_that_cannot_be_forked_makes_all_imports_slow_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is found and left out, with whoever imports it; the rest is warm from the second start on."""
    caplog.set_level("INFO")
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    first = bench.worker()
    assert (first["warm"], first["forked"]) == ([], True)
    bench.learns()
    second = bench.worker()
    assert second["forked"]
    assert second["warm"] == ["plain", "package", "package.rest", "knows_its_rank", "last"]
    told = "\n".join(caplog.messages)
    for name, why in [
        ("package.threads", "starts 1 thread"),
        ("drags", "starts 1 thread"),
        ("touches_gpu", "initialises CUDA"),
        ("crashes", "ends the process"),
        ("starts_a_process", "starts 1 process"),
        ("connects", "opens 2 network connections"),
        ("locks", "makes a semaphore"),
    ]:
        assert f"not preloading {name}, every worker imports it itself: importing it {why}" in told
    assert not launcher.problem


def test_a_module_that_asks_for_its_rank_is_preloaded_for_the_rank_it_will_have(bench: Bench) -> None:
    """lightning and torchmetrics do. A survivor keeps its rank; where the plan says otherwise, the script imports it
    itself."""
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    bench.worker(RANK="3")
    bench.learns()
    same = bench.worker(RANK="3")
    assert ("knows_its_rank" in same["warm"], same["rank"], same["forked"]) == (True, 3, True)
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    other = bench.worker(RANK="2")
    assert ("knows_its_rank" in other["warm"], other["rank"], other["forked"]) == (False, 2, True)
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    launcher.expect({0: {"RANK": "5"}})
    expected = bench.worker(RANK="5")
    assert ("knows_its_rank" in expected["warm"], expected["rank"], expected["forked"]) == (True, 5, True)


def test_all_that_ask_for_their_rank_are_found_with_one_trial(bench: Bench) -> None:
    """lightning brings torchmetrics along, and each takes seconds: a trial of either would put what follows off by as
    much."""
    files = {
        "outer/__init__.py": "import inner, neutral, os\nRANK = os.environ.get('RANK')\n",
        "inner/more.py": "",
        "inner/__init__.py": "import os, inner.more\nRANK = "
        "os.environ.get('LOCAL_RANK')\nopen(os.environ['IMPORTED'], 'a').write('x')\n",
        "neutral/__init__.py": "",
    }
    for name, text in files.items():
        (bench.packages / name).parent.mkdir(exist_ok=True)
        (bench.packages / name).write_text(text)
    (bench.folder / "script.py").write_text(
        "import json, sys\nprint(json.dumps([name for name in ('outer', 'inner', 'neutral') if name in "
        "sys.modules]))\nimport outer\n"
    )
    imported = bench.folder / "imported"
    bench.environment["IMPORTED"] = str(imported)
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    assert bench.worker(RANK="3", LOCAL_RANK="0") == []
    bench.learns()
    assert launcher.imports.fork_safe == ["neutral"]
    assert launcher.imports.per_rank == {"outer": ["LOCAL_RANK", "RANK"], "inner": ["LOCAL_RANK"]}
    assert imported.read_text() == "xxx", "by the first worker, in one trial, by the worker that is parked"
    assert bench.worker(RANK="3", LOCAL_RANK="0") == ["outer", "inner", "neutral"]


def test_workers_have_the_agents_priority_after_learning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning runs at a lower one, which a process without privileges could not raise again; and no program `nice`
    need be there."""
    bench.environment["PATH"] = str(bench.folder)
    monkeypatch.setenv("PATH", str(bench.folder))
    (bench.packages / "starts_a_process.py").write_text("class PROCESS:\n kill = staticmethod(lambda: None)\n")
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    bench.worker()
    bench.learns()
    second = bench.worker()
    assert "plain" in second["warm"]
    assert second["nice"] == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_newcomer_is_ready_when_it_has_imported_what_the_others_scripts_import(bench: Bench) -> None:
    launcher = bench.launcher(preload=["auto"], waits=True)
    bench.run_until(lambda: launcher.stores.listening)
    assert not launcher.ready, "it does not know yet whether there is something to import"
    known = ImportVerdicts(fork_safe=["plain", "last", "not_installed_here"], per_rank={"knows_its_rank": ["RANK"]})
    launcher.expect({0: {"RANK": "2"}})
    launcher.add_imports(known, wait=True)
    assert not launcher.ready
    bench.run_until(lambda: launcher.ready)
    assert bench.worker(RANK="2")["warm"] == ["plain", "knows_its_rank", "last"]


def test_the_first_members_of_a_job_do_not_wait_for_what_an_earlier_run_learned(bench: Bench) -> None:
    launcher = bench.launcher(preload=["auto"], waits=True)
    bench.run_until(lambda: launcher.stores.listening)
    launcher.add_imports(ImportVerdicts(fork_safe=["plain"]), wait=False)
    assert launcher.ready
    bench.learns()
    assert "plain" in bench.worker()["warm"]


def test_a_module_that_the_user_named_and_that_cannot_be_forked_is_left_out(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = bench.launcher(preload=["plain", "package.threads", "last"])
    bench.run_until(lambda: launcher.ready)
    said = bench.worker()
    assert (said["warm"], said["forked"]) == (["plain", "last"], True)
    assert [record.levelname for record in caplog.records if "not preloading package.threads" in record.message] == [
        "WARNING"
    ]


def test_workers_are_spawned_where_torch_itself_cannot_be_forked(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (bench.packages / "torch/__init__.py").write_text(MODULES["torch/__init__.py"] + MODULES["package/threads.py"])
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    assert bench.worker()["forked"] is False
    assert "no zygote, spawning workers: importing it starts 1 thread" in caplog.text


def test_a_start_never_holds_up_the_agent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zygote that hangs: the agent's loop goes on, and the worker is spawned after a while."""
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 0.5)
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.ready)
    (zygote,) = bench.zygotes()
    bench.worker()
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    os.kill(zygote, signal.SIGSTOP)
    assert bench.worker()["forked"], "there was one parked"
    told, _ = bench.start()
    assert told == []
    turns: list[int] = []
    bench.event_loop.call_soon(lambda: turns.append(1))
    bench.event_loop.wait(0)
    assert (told, turns) == ([], [1])
    assert launcher.deadline is not None
    pid = bench.run_until(lambda: told)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.kill(zygote, signal.SIGCONT)
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 60.0)
    assert bench.worker()["forked"]


def test_starts_that_are_called_off_are_forgotten(bench: Bench) -> None:
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.ready)
    os.kill(bench.zygotes()[0], signal.SIGSTOP)
    bench.worker()
    told, _ = bench.start()
    launcher.cancel()
    os.kill(bench.zygotes()[0], signal.SIGCONT)
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    assert told == []
    assert launcher.deadline is None


def test_a_killed_zygote_is_replaced_and_what_it_parked_is_used(bench: Bench) -> None:
    launcher = bench.launcher(preload=[])
    bench.run_until(
        lambda: launcher.ready and launcher._zygotes.current is not None and launcher._zygotes.current.preforked
    )
    (old,) = bench.zygotes()
    os.kill(old, signal.SIGKILL)
    bench.run_until(lambda: launcher._zygotes.successor is not None)
    assert bench.worker()["forked"]
    bench.run_until(
        lambda: launcher._zygotes.current is not None and launcher._zygotes.current.ready, what="another one"
    )
    assert not lives(old)
    assert bench.worker()["forked"]


def test_who_waits_for_a_fork_is_spawned_at_once_when_the_zygote_dies(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 600.0)
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.ready)
    os.kill(bench.zygotes()[0], signal.SIGSTOP)
    bench.worker()
    told, _ = bench.start()
    assert told == []
    os.kill(bench.zygotes()[0], signal.SIGKILL)
    (pid,) = bench.run_until(lambda: told)
    assert isinstance(pid, int)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_parked_worker_that_was_killed_takes_no_command_along(bench: Bench) -> None:
    """The agent does not know yet when it hands the command over."""
    launcher = bench.launcher(preload=[])
    parked = bench.run_until(
        lambda: launcher.ready and launcher._zygotes.current is not None and launcher._zygotes.current.preforked
    )
    os.kill(parked[0].pid, signal.SIGKILL)
    os.waitpid(parked[0].pid, 0)
    assert bench.worker()["forked"]


def test_a_zygote_that_keeps_being_killed_is_given_up(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    launcher = bench.launcher(preload=[])
    for _ in range(4):
        bench.run_until(
            lambda: launcher.ready and launcher._zygotes.current is not None and launcher._zygotes.current.ready
        )
        assert launcher._zygotes.current is not None
        os.kill(launcher._zygotes.current.pid, signal.SIGKILL)
        bench.run_until(lambda: launcher._zygotes.current is None or not launcher._zygotes.current.ready)
    bench.run_until(lambda: launcher.problem)
    assert "spawning workers" in caplog.text
    assert bench.worker()["forked"] is False


def test_a_killed_store_host_is_replaced(bench: Bench) -> None:
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.stores.listening)
    host = launcher.stores.pid
    os.kill(host, signal.SIGKILL)
    bench.run_until(lambda: not launcher.stores.listening)
    bench.run_until(lambda: launcher.stores.listening)
    socket.create_connection(("127.0.0.1", bench.port), 5).close()
    os.waitpid(host, 0)
