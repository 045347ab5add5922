"""Starts worker processes with fork and exec, for `--start-method=spawn`, and where the zygote cannot fork them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.training import auto_progress
from elasticjob_runtime.workers import descriptors, linux
from elasticjob_runtime.workers.libuv import libuv_is_lacking
from elasticjob_runtime.workers.process import WorkerSpec
from elasticjob_runtime.workers.store_host import StoreHost

HOOKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exec_hooks")

OnStarted = Callable[[int | OSError], None]
"""Called with the process id of the started worker, a child of this process that leads its own session, or with the
error that prevented the start."""


def spawn(spec: WorkerSpec, on_started: OnStarted) -> None:
    """Starts the worker's command in a new process. This works for every command, but a Python worker pays for all its
    imports."""
    agent = os.getpid()

    def in_child() -> None:
        linux.die_with_parent(agent)
        descriptors.restore_limit()

    try:
        process = subprocess.Popen(
            spec.command.for_rank(spec.local_rank),
            env=_with_hooks(spec),
            stdout=spec.stdout,
            stderr=spec.stderr,
            start_new_session=True,
            preexec_fn=in_child,  # noqa: PLW1509 - a few system calls, no locks: safe with other threads
        )
    except OSError as error:
        on_started(error)
        return
    process.returncode = 0  # reaped by `WorkerProcess.reap`, not by Popen
    on_started(process.pid)


def _with_hooks(spec: WorkerSpec) -> Mapping[str, str]:
    """The worker's environment, with the folder of exec_hooks/sitecustomize.py first on its PYTHONPATH if its steps are
    to be counted, or an agent hosts its store, for which torch is changed. That module removes it again."""
    environment = spec.environment
    counted = os.path.exists(auto_progress.page_file(str(spec.error_file)))
    if not counted and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return environment
    before = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{HOOKS}{os.pathsep}{before}" if before else HOOKS}


class SpawnLauncher:
    """Spawns every worker: for `--start-method=spawn`, and for commands that are not Python.

    It has the interface of ZygoteLauncher, with nothing to prepare, to wait for or to close.
    """

    def __init__(self, event_loop: EventLoop) -> None:
        self._event_loop = event_loop
        self.ready = False
        self.problem = "--start-method=spawn"
        self.stores: StoreHost | None = None
        # Reads half a gigabyte, perhaps from a slow disk: too slow for the agent's loop.
        threading.Thread(target=self._find_libuv, name="libuv", daemon=True).start()

    @property
    def deadline(self) -> float | None:
        return None

    @property
    def without_libuv(self) -> bool:
        return libuv_is_lacking()

    def start(self, spec: WorkerSpec, on_started: OnStarted) -> None:
        spawn(spec, on_started)

    def cancel(self) -> None:
        pass

    def prefork_next(self) -> None:
        pass

    @property
    def pids(self) -> list[int]:
        return []

    def tick(self, _now: float) -> None:
        pass

    def close(self) -> None:
        pass

    def _find_libuv(self) -> None:
        libuv_is_lacking()
        with contextlib.suppress(OSError):  # the agent has ended meanwhile
            self._event_loop.call_soon(self._found_libuv)

    def _found_libuv(self) -> None:
        self.ready = True
