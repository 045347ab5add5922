"""Background tasks that run for the operator's lifetime. A task that ends on its own is a fault and fails the liveness
probe.

start(work, name)   starts a task; its end by exception, cancellation or return is a fault
stop(task)          cancels a task without a fault
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Supervisor:
    """`on_fault` is called once for each fault, with a message."""

    def __init__(self, on_fault: Callable[[str], None] = lambda _: None) -> None:
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()
        self.faults: list[str] = []

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """Running tasks."""
        return frozenset(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def stop(self, task: asyncio.Task[None]) -> None:
        """Cancels the task and waits until it has ended."""
        self._tasks.discard(task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_all(self) -> None:
        tasks, self._tasks = list(self._tasks), set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task not in self._tasks:
            return
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        fault = f"{task.get_name()} ended" + (f": {type(problem).__name__}" if problem else "")
        log.critical("%s: the operator must be restarted", fault, exc_info=problem)
        self.faults.append(fault)
        self._on_fault(fault)
