"""Places for requests: bounded, and shared in turns."""

from __future__ import annotations

import asyncio

from elasticjob_operator.kube.request_slots import FairSlots

from tests.unit.operator.waiting import until


class Bench:
    def __init__(self, limit: int, each: int) -> None:
        self.slots = FairSlots(limit, each)
        self.running: list[str] = []
        self.served: list[str] = []
        self._gates: list[tuple[str, asyncio.Event]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def ask(self, owner: str, count: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._hold(owner)) for _ in range(count)]
        self._tasks += tasks
        return tasks

    async def _hold(self, owner: str) -> None:
        async with self.slots.hold(owner):
            gate = asyncio.Event()
            self.running.append(owner)
            self.served.append(owner)
            self._gates.append((owner, gate))
            try:
                await gate.wait()
            finally:
                self.running.remove(owner)

    def finish(self, owner: str) -> None:
        found = next(gate for gate in self._gates if gate[0] == owner)
        self._gates.remove(found)
        found[1].set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_one_owner_never_holds_all_slots() -> None:
    bench = Bench(limit=4, each=3)
    bench.ask("big", 100)
    await until(lambda: bench.running == ["big"] * 3)
    bench.ask("small")
    await until(lambda: "small" in bench.running)
    await bench.close()


async def test_waiting_owners_are_served_in_turn() -> None:
    bench = Bench(limit=2, each=2)
    bench.ask("big", 100)
    await until(lambda: len(bench.running) == 2)
    bench.ask("small")
    bench.ask("tiny")
    await asyncio.sleep(0)
    for _ in range(4):
        before = len(bench.served)
        bench.finish("big")
        await until(lambda before=before: len(bench.served) == before + 1)  # type: ignore[misc]
        if "small" in bench.served and "tiny" in bench.served:
            break
    assert {"small", "tiny"} <= set(bench.served[:5]), bench.served[:6]
    await bench.close()


async def test_a_cancelled_waiter_leaks_no_slot() -> None:
    bench = Bench(limit=1, each=1)
    bench.ask("a")
    await until(lambda: bench.running == ["a"])
    (waits,) = bench.ask("b")
    bench.ask("c")
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    bench.finish("a")
    await until(lambda: bench.running == ["c"])
    bench.finish("c")
    await until(lambda: not bench.running)
    (last,) = bench.ask("d")
    await until(lambda: bench.running == ["d"])
    bench.finish("d")
    await last
    assert (bench.slots._free, bench.slots._held, bench.slots._waiting) == (1, {}, {}), (
        "nothing is kept of owners that are gone"
    )


async def test_a_slot_granted_to_a_waiter_cancelled_at_that_moment_is_not_lost() -> None:
    bench = Bench(limit=1, each=1)
    bench.ask("a")
    await until(lambda: bench.running == ["a"])
    (waits,) = bench.ask("b")
    await asyncio.sleep(0)
    bench.slots._give_back("a")  # b is served, and cancelled before it runs
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert bench.slots._free == 1
    bench.slots._free, bench.slots._held["a"] = 0, 1
    await bench.close()
