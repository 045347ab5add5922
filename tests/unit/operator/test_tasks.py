"""A background task that ends is a fault, however it ends; all of the operator's tasks are supervised this way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from elasticjob_operator.controller import WorkQueue
from elasticjob_operator.etcd import RunWatches
from elasticjob_operator.planning import Target
from elasticjob_operator.tasks import Supervisor

from tests.unit.operator.waiting import until


async def forever() -> None:
    await asyncio.Event().wait()


async def returns() -> None:
    return


async def raises() -> None:
    raise ValueError("no")


async def test_running_and_stopped_tasks_are_no_faults() -> None:
    supervisor = Supervisor()
    task = supervisor.start(forever(), "one")
    supervisor.start(forever(), "two")
    await asyncio.sleep(0)
    await supervisor.stop(task)
    await supervisor.stop_all()
    await asyncio.sleep(0)
    assert supervisor.faults == []


@pytest.mark.parametrize(("work", "fault"), [(returns, "it ended"), (raises, "it ended: ValueError")])
async def test_a_task_that_ends_is_a_fault(work: Callable[[], Awaitable[None]], fault: str) -> None:
    reported: list[str] = []
    supervisor = Supervisor(reported.append)
    supervisor.start(work(), "it")  # type: ignore[arg-type]
    await until(lambda: supervisor.faults)
    assert supervisor.faults == reported == [fault]


async def test_a_task_that_other_code_cancelled_is_a_fault() -> None:
    supervisor = Supervisor()
    task = supervisor.start(forever(), "it")
    await asyncio.sleep(0)
    task.cancel()
    await until(lambda: supervisor.faults == ["it ended"])


async def test_a_queue_worker_that_ends_is_a_fault() -> None:
    supervisor, queue = Supervisor(), WorkQueue[str]()

    async def handle(_: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    supervisor.start(queue.work(handle, 3), "reconcilers")
    queue.add("a")
    await until(lambda: supervisor.faults)
    assert supervisor.faults[0].startswith("reconcilers ended")


async def test_a_shared_watch_that_ends_is_a_fault_unless_it_is_no_longer_needed() -> None:
    supervisor = Supervisor()
    run_watches = RunWatches(lambda _: None, supervisor=supervisor)
    for name in ("a", "b"):
        await run_watches.follow(("ml", name), Target(endpoint=f"127.0.0.1:{len(name)}", run_id=name))
    await run_watches.follow(("ml", "a"), Target(endpoint="127.0.0.1:2", run_id="a"))
    await run_watches.follow(("ml", "b"), None)
    await asyncio.sleep(0)
    assert supervisor.faults == []
    (task,) = supervisor.tasks
    task.cancel()
    await until(lambda: supervisor.faults == ["watch of etcd 127.0.0.1:2 ended"])
    await run_watches.close()
