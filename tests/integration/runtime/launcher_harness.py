"""The zygote launcher in this process, with a small package in torch's place."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.linux import stat_fields
from elasticjob_runtime.workers.process import Command, WorkerSpec
from elasticjob_runtime.workers.zygote.launcher import ZygoteLauncher
from elasticjob_runtime.workers.zygote.pool import Preforked

from hack.cluster.ports import free_ports
from tests.integration.runtime import small_torch
from tests.integration.runtime.agents import SOURCE

MODULES = {
    **small_torch.FILES,
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


class Harness:
    """A launcher, and an agent's event loop to run it."""

    def __init__(self, folder: pathlib.Path, modules: dict[str, str]) -> None:
        self.folder = folder
        self.packages = small_torch.write_modules(folder / "site-packages", modules)
        (folder / "script.py").write_text(SCRIPT)
        self.environment = {**os.environ, "PYTHONPATH": f"{self.packages}:{SOURCE}"}
        self.command = Command(program=[sys.executable, "-u"], arguments=[str(folder / "script.py")])
        (self.port,) = free_ports(1)
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
            learn_after=0.5,
            waits_for_imports=waits,
        )
        return self._launcher

    def ready_launcher(self, *, preload: list[str]) -> ZygoteLauncher:
        launcher = self.launcher(preload=preload)
        self.run_until(lambda: launcher.ready)
        return launcher

    def wait_until_preforked(self) -> list[Preforked]:
        launcher = self._launcher
        assert launcher is not None

        def preforked() -> list[Preforked]:
            zygote = launcher._zygotes.current
            return zygote.preforked if launcher.ready and zygote is not None else []

        found: list[Preforked] = self.run_until(preforked, what="a worker process is preforked")
        return found

    def run_until(self, predicate: Callable[[], Any], timeout: float = 60.0, what: str = "") -> Any:
        end = time.monotonic() + timeout
        while not (found := predicate()):
            assert time.monotonic() < end, what
            self.event_loop.wait(0.05)
            if self._launcher is not None:
                self._launcher.tick(time.monotonic())
        return found

    def start(self, **variables: str) -> tuple[list[int | OSError], pathlib.Path]:
        """Starts a worker process with these environment variables.

        Returns the list that its pid or error is appended to (perhaps later), and its output file.
        """
        assert self._launcher is not None
        self._numbers += 1
        output = self.folder / f"output-{self._numbers}"
        results: list[int | OSError] = []
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
            results.append(result)

        self._launcher.start(spec, started)
        return results, output

    def worker(self, **variables: str) -> Any:
        """Starts a worker process, and returns what its script prints."""
        assert self._launcher is not None
        results, output = self.start(**variables)
        pid = self.run_until(lambda: results)[0]
        self._launcher.prefork_next()
        self.run_until(lambda: stat_fields(pid)[0] == "Z")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return json.loads(output.read_text().splitlines()[0])

    def wait_until_learned(self) -> None:
        """Waits until a zygote with the script's imports is in use and has preforked a worker process."""
        launcher = self._launcher
        assert launcher is not None

        def learned() -> bool:
            idle = not launcher._zygotes.is_learning and not launcher._modules.untried()
            return idle and launcher._zygotes.current is not None and bool(launcher._zygotes.current.preforked)

        self.run_until(learned, what="the launcher learns the imports")

    def zygotes(self) -> list[int]:
        """The pids of this launcher's zygotes."""
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
