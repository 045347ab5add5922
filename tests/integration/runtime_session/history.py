"""Waiting for what the processes of a driver do, and reading what they left."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence

from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.driver import Driver, Worker


def wait_until(
    driver: Driver, condition: Callable[[], bool], what: str, timeout: float = 120.0, *, failures: bool = True
) -> None:
    """`failures`: whether a process that fails by itself is an error."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}\n{driver.stacks()}")
        driver.pump()
        driver.mend()
        if failures:
            driver.check()


def begin(driver: Driver, *names: str, later: Sequence[str] = ()) -> list[Worker]:
    """Starts processes and sends the first plan. Those that join `later` are ready, but not in it."""
    workers = driver.start(*names, *later)
    wait_until(driver, lambda: all(worker.ready for worker in workers), "all say hello")
    driver.plan(workers[: len(names)])
    return workers


def steps_of(tmp_path: pathlib.Path, worker: Worker) -> list[tuple[float, int, int]]:
    """Time, committed steps, world size."""
    path = tmp_path / f"{worker.name}.steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(at), int(step), int(size)) for at, step, size in (line.split() for line in lines)]


def committed(tmp_path: pathlib.Path, worker: Worker) -> int:
    return max((step for _, step, _ in steps_of(tmp_path, worker)), default=0)


def wait_for_step(driver: Driver, tmp_path: pathlib.Path, worker: Worker, step: int) -> None:
    wait_until(driver, lambda: committed(tmp_path, worker) >= step, f"{worker.name} has {step} steps")


def wait_for_mark(driver: Driver, tmp_path: pathlib.Path, worker: Worker, mark: str) -> None:
    """Until its script has written that line."""
    path = tmp_path / f"{worker.name}.marks"
    wait_until(driver, lambda: path.exists() and mark in path.read_text().splitlines(), f"{worker.name}: {mark}")


def finish(driver: Driver, tmp_path: pathlib.Path, workers: Sequence[Worker]) -> list[Run]:
    """Waits until `workers`, those of the plan, end. When one has, the others get a plan without it, as from agents."""
    left = list(workers)

    def all_end() -> bool:
        ended = [item for item in left if item.process.poll() is not None]
        if ended:
            left[:] = [item for item in left if item not in ended and item.entered]
            driver.plan(left, step_grace=5.0, told=left)
        return not left

    wait_until(driver, all_end, "all end")
    done = [worker for worker in workers if worker.process.poll() is not None]  # not those that never had a part in it
    for item in done:
        assert item.process.returncode == 0, (tmp_path / f"{item.name}.log").read_text()[-3000:]
    return [Run.read(tmp_path / item.name) for item in done]
