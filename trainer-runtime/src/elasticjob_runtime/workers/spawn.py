"""Workers that are spawned, every one: nothing is prepared, nothing is shared."""

from __future__ import annotations

import contextlib
import threading

from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.libuv import libuv_is_lacking
from elasticjob_runtime.workers.process import SpawnLauncher, Started, WorkerSpec
from elasticjob_runtime.workers.store_host import StoreHost


class SpawningLauncher:
    """Spawns every worker: `--start-method=spawn`, and commands that are not Python."""

    def __init__(self, event_loop: EventLoop) -> None:
        self._event_loop = event_loop
        self._spawn = SpawnLauncher()
        self.ready = False
        self.problem = "asked for"
        self.stores: StoreHost | None = None
        # Reads half a gigabyte, perhaps from a slow disk: nothing for the agent's loop.
        threading.Thread(target=self._look, name="libuv", daemon=True).start()

    @property
    def deadline(self) -> float | None:
        """There is nothing to do at any time."""
        return None

    @property
    def without_libuv(self) -> bool:
        return libuv_is_lacking()

    def start(self, spec: WorkerSpec, started: Started) -> None:
        self._spawn.start(spec, started)

    def cancel(self) -> None:
        """Nothing is ever waited for."""

    def started(self) -> None:
        """Nothing to prepare."""

    @property
    def pids(self) -> list[int]:
        return []

    def tick(self, _now: float) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to end."""

    def _look(self) -> None:
        libuv_is_lacking()
        with contextlib.suppress(OSError):  # the agent has ended meanwhile
            self._event_loop.call_soon(self._looked)

    def _looked(self) -> None:
        self.ready = True
