"""What a run that forms again and again costs another run on the same etcd.

A quiet run loses one member at a time, and each loss is measured: until all others have their new rank. First alone,
then beside noisy runs, which lose one member after the other without a pause and start over. With two cores or more,
the noisy members have the last one for themselves, as if they ran on other nodes, so what is left is etcd's part.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.rendezvous.__main__ import LIMIT, CrowdError, Crowds, crowds_of
from hack.cluster.loopback import Etcd
from hack.support import eventually

LEFT = 2
"""A run with so few members loses none."""


def losses(crowds: Crowds, members: int, pause: float) -> Iterator[float]:
    """Starts the members; then the time from each loss until all others have their rank, s. Raises CrowdError."""
    crowds.wait(0)
    crowds.send("go")
    crowds.wait(1)
    for round_number in range(2, members - LEFT + 2):
        time.sleep(pause)
        lost = time.time()
        crowds.send("lose", [1])
        yield max(report.at for report in crowds.wait(round_number)) - lost


class Storm:
    """A run that forms again and again, in a thread."""

    def __init__(self, endpoint: str, members: int, cores: set[int]) -> None:
        self._endpoint, self._members, self._cores = endpoint, members, cores
        self._ends = threading.Event()
        self.rounds = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        os.sched_setaffinity(0, self._cores)  # of this thread, and of the processes that it starts
        while not self._ends.is_set():
            with crowds_of(self._endpoint, self._members, 1) as crowds, contextlib.suppress(CrowdError):
                for _ in losses(crowds, self._members, pause=0.0):
                    self.rounds += 1
                    if self._ends.is_set():
                        break


def measure(folder: Path, quiet: int, noisy: int, storms: int) -> tuple[list[float], float]:
    """(the time of each loss of the quiet run, rounds of the noisy runs per second)"""
    cores = sorted(os.sched_getaffinity(0))
    apart = set(cores[-1:]) if len(cores) > 1 else set(cores)
    os.sched_setaffinity(0, (set(cores) - apart) or set(cores))
    try:
        with Etcd(folder) as etcd, contextlib.ExitStack() as stack:
            endpoint = etcd.endpoint.removeprefix("http://")
            running = [stack.enter_context(Storm(endpoint, noisy, apart)) for _ in range(storms)]
            eventually(lambda: all(storm.rounds for storm in running), LIMIT, what="the storm has begun")
            with crowds_of(endpoint, quiet, 1) as crowds:
                began, before = time.monotonic(), sum(storm.rounds for storm in running)
                found = list(losses(crowds, quiet, pause=0.3))
                rounds = sum(storm.rounds for storm in running) - before
            return found, rounds / (time.monotonic() - began)
    finally:
        os.sched_setaffinity(0, cores)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rendezvous.storm", description=__doc__)
    parser.add_argument("--quiet", type=int, default=32, help="members of the quiet run (default: 32)")
    parser.add_argument("--noisy", type=int, default=200, help="members of each noisy run (default: 200)")
    parser.add_argument("--storms", type=int, default=1, help="noisy runs (default: 1)")
    parser.add_argument("--runs", type=int, default=3, help="runs, alone and in a storm by turns (default: 3)")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    times: dict[int, list[float]] = {0: [], arguments.storms: []}
    for _ in range(arguments.runs):
        for storms in times:
            with tempfile.TemporaryDirectory(prefix="elasticjob-storm-") as folder:
                each, rounds = measure(Path(folder), arguments.quiet, arguments.noisy, storms)
            times[storms] += each
            console.print(
                f"{storms} noisy runs ({rounds:.1f} rounds/s): {len(each)} losses, median "
                f"{statistics.median(each) * 1000:.0f} ms, p90 {statistics.quantiles(each, n=10)[-1] * 1000:.0f} ms"
            )
    alone, beside = (statistics.median(found) for found in times.values())
    console.print(
        f"median beside the storm / alone: {beside / alone:.2f} ({beside * 1000:.0f} / {alone * 1000:.0f} ms)"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
