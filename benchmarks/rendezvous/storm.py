"""What a run that forms again and again costs another run on the same etcd.

A quiet run loses one member at a time, and each loss is measured: until all others have their new rank. First alone,
then beside a noisy run, which loses one member after the other without a pause and starts over. With two cores or more,
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

QUIET, NOISY = 32, 200
"""Members of each run."""
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

    def __init__(self, endpoint: str, cores: set[int]) -> None:
        self._endpoint, self._cores = endpoint, cores
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
            with crowds_of(self._endpoint, NOISY, 1) as crowds, contextlib.suppress(CrowdError):
                for _ in losses(crowds, NOISY, pause=0.0):
                    self.rounds += 1
                    if self._ends.is_set():
                        break


def measure(folder: Path, *, stormy: bool) -> tuple[list[float], float]:
    """(the time of each loss of the quiet run, rounds of the noisy run per second)"""
    cores = sorted(os.sched_getaffinity(0))
    apart = set(cores[-1:]) if len(cores) > 1 else set(cores)
    os.sched_setaffinity(0, (set(cores) - apart) or set(cores))
    try:
        with Etcd(folder) as etcd, contextlib.ExitStack() as stack:
            endpoint = etcd.endpoint.removeprefix("http://")
            storm = Storm(endpoint, apart)
            if stormy:
                stack.enter_context(storm)
                eventually(lambda: storm.rounds, LIMIT, what="the storm has begun")
            with crowds_of(endpoint, QUIET, 1) as crowds:
                began, before = time.monotonic(), storm.rounds
                found = list(losses(crowds, QUIET, pause=0.3))
                rounds = storm.rounds - before
            return found, rounds / (time.monotonic() - began)
    finally:
        os.sched_setaffinity(0, cores)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rendezvous.storm", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs, alone and in a storm by turns (default: 3)")
    console = Console(highlight=False)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(parser.parse_args().runs):
        for stormy in times:
            with tempfile.TemporaryDirectory(prefix="elasticjob-storm-") as folder:
                each, rounds = measure(Path(folder), stormy=stormy)
            times[stormy] += each
            console.print(
                f"{'in a storm' if stormy else 'alone'} ({rounds:.1f} rounds/s): {len(each)} losses, median "
                f"{statistics.median(each) * 1000:.0f} ms, p90 {statistics.quantiles(each, n=10)[-1] * 1000:.0f} ms"
            )
    alone, beside = (statistics.median(found) for found in times.values())
    console.print(
        f"median beside the storm / alone: {beside / alone:.2f} ({beside * 1000:.0f} / {alone * 1000:.0f} ms)"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
