"""What it takes a session's processes to form a world: `python -m benchmarks.forming [SIZE ...]` (50, 100 and 200).

All processes are on this machine, and reach the store at the same time. The first world is not counted.

torch's store client looks up the name of the store's host, so this also measures a slow DNS, which some sandboxes have
for many requests at once. A line `::ffff:127.0.0.1 localhost` in /etc/hosts leaves it out.
"""

from __future__ import annotations

import collections
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch
from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.checkpoint.order import Kind, State
from elasticjob_runtime.training.session import forming
from elasticjob_runtime.training.session.backend import Gloo, Group
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.world import ProcessState, World
from elasticjob_runtime.workers.environment import RES_OPTIONS
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from tests.integration.runtime_session.forks import FORKS

WORLDS = 6
OPERATIONS = ("set", "add", "check", "get", "multi_get")


class CountedStore(PrefixStore):
    """Counts what forming.py itself asks of the store. gloo has a part of the store of its own."""

    counts: ClassVar[collections.Counter[str]] = collections.Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in OPERATIONS:
            return found

        def counted(*arguments: Any) -> Any:
            result = found(*arguments)
            CountedStore.counts["calls"] += 1
            CountedStore.counts["bytes"] += _size(arguments) + _size(result)
            return result

        return counted


def _size(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(_size(part) for part in value)
    return len(value) if isinstance(value, str | bytes) else 0


def member(pipe: Connection, rank: int, size: int, port: int) -> None:
    """Says that it is ready, then forms a world for each number, and sends when it had, calls and bytes. None
    ends it."""
    torch.set_num_threads(1)
    setattr(forming, "PrefixStore", CountedStore)  # noqa: B010 mypy
    old: list[Group] = []
    pipe.send(rank)  # it has imported everything
    while (number := pipe.recv()) is not None:
        environment = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            Env.ROUND: str(number), Env.FENCE: f"1.0.{number}",
        }  # fmt: skip
        world = World(round=number, attempt="1", step_grace=0.0, environment=environment)
        state = ProcessState(state=State(step=number, kind=Kind.LIVE), layout="0" * 64)
        CountedStore.counts.clear()
        formed = forming.form(world, state, Interruption(), Gloo())
        pipe.send((time.monotonic(), CountedStore.counts["calls"], CountedStore.counts["bytes"]))
        pipe.recv()  # all have formed it
        for group in old:
            group.interrupt()
        old = [formed.group]


def measure(size: int) -> None:
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pipes = []
    for rank in range(size):
        mine, theirs = FORKS.Pipe()
        FORKS.Process(target=member, args=(theirs, rank, size, store.port), daemon=True).start()
        theirs.close()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    times, calls, sizes = [], [], []
    for number in range(WORLDS):
        began = time.monotonic()
        for pipe in pipes:
            pipe.send(number)
        found = [pipe.recv() for pipe in pipes]
        times.append(max(at for at, _, _ in found) - began)
        calls.append(statistics.mean(count for _, count, _ in found[1:]))
        sizes.append(statistics.mean(count for _, _, count in found[1:]))
        for pipe in pipes:
            pipe.send(number)
    for pipe in pipes:
        pipe.send(None)
    median = statistics.median
    print(
        f"{size} processes: {median(times[1:]):.3f} s ({min(times[1:]):.3f} to {max(times[1:]):.3f}); of each but "
        f"rank 0: {median(calls[1:]):.0f} calls of the store, {median(sizes[1:]):.0f} bytes; "
        f"rank 0: {found[0][1]} calls, {found[0][2]} bytes; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.setdefault("RES_OPTIONS", RES_OPTIONS)
    for size in [int(text) for text in sys.argv[1:]] or [50, 100, 200]:
        measure(size)
