"""`python -m benchmarks.rendezvous`: see `--help`, and the package's words on the method."""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.etcd import Etcd
from benchmarks.rendezvous.report import Counters, Crowded, Phase, Result, counters, parse_line, table, verdict
from hack.cluster.output import DIE_WITH_PARENT

LIMIT = 240.0
"""s for one phase."""


class CrowdError(Exception):
    """Not all members got their rank."""


class Crowds:
    """The processes that hold the members."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._said: queue.SimpleQueue[Crowded] = queue.SimpleQueue()
        for process in processes:
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def say(self, word: str, to: Sequence[int] | None = None) -> None:
        for number in range(len(self._processes)) if to is None else to:
            stdin = self._processes[number].stdin
            assert stdin is not None
            stdin.write(word + "\n")
            stdin.flush()

    def wait(self, round_number: int, of: int | None = None) -> list[Crowded]:
        """What each says of this round (`of`: of so many that have members left). Raises CrowdError."""
        end = time.monotonic() + LIMIT
        found: list[Crowded] = []
        while len(found) < (of or len(self._processes)):
            try:
                said = self._said.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise CrowdError(f"after {LIMIT:g} s, not all members have a rank in plan {round_number}") from None
            if said.round == round_number:
                found.append(said)
        return found

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put(parse_line(line))


def measure(members: int, processes: int, folder: Path, nofile: int = 0) -> Result:
    """One start of so many members, the loss of the last, and that of the first, which plans.

    The first has a process of its own, which may open `nofile` descriptors (0: as many as it can get).
    """
    with ExitStack() as stack:
        etcd = stack.enter_context(Etcd(folder))
        crowds = stack.enter_context(_crowds(etcd.endpoint, members, min(processes, members - 1), nofile))
        last = min(processes, members - 1)
        ready = crowds.wait(0)
        before = counters(etcd.metrics())
        crowds.say("go", [0])
        time.sleep(0.3)  # so that it is the first to register
        began = time.time()
        crowds.say("go", range(1, last + 1))
        ranked = crowds.wait(1)
        time.sleep(1.0)  # what is still under way does not count for the next phase
        start = _phase(began, ready, ranked, before, counters(etcd.metrics()))
        time.sleep(1.0)
        lost, before = time.time(), counters(etcd.metrics())
        crowds.say("lose", [last])
        again = crowds.wait(2)
        time.sleep(1.0)
        loss = _phase(lost, ranked, again, before, counters(etcd.metrics()))
        lost, before = time.time(), counters(etcd.metrics())
        crowds.say("lose", [0])
        taken = crowds.wait(3, of=last)
        time.sleep(1.0)
        takeover = _phase(lost, [one for one in again if one.planners == 0], taken, before, counters(etcd.metrics()))
        return Result(members=members, start=start, loss=loss, takeover=takeover)


def _phase(
    began: float, before: Sequence[Crowded], after: Sequence[Crowded], etcd_before: Counters, etcd_after: Counters
) -> Phase:
    return Phase(
        seconds=max(one.at for one in after) - began,
        python_cpu=sum(one.cpu for one in after) - sum(one.cpu for one in before),
        etcd=etcd_after - etcd_before,
        planners=sum(one.planners for one in after) - sum(one.planners for one in before),
    )


@contextmanager
def _crowds(endpoint: str, members: int, processes: int, nofile: int) -> Iterator[Crowds]:
    started: list[subprocess.Popen[str]] = []
    run_id = secrets.token_hex(6)
    edges = [0, *(1 + (members - 1) * number // processes for number in range(processes + 1))]
    try:
        for first, end in itertools.pairwise(edges):
            started.append(
                subprocess.Popen(
                    [
                        *(*DIE_WITH_PARENT, sys.executable, "-m", "benchmarks.rendezvous.crowd"),
                        *("--endpoint", endpoint, "--run-id", run_id, "--nofile", "0" if first else str(nofile)),
                        *("--first", str(first), "--count", str(end - first), "--total", str(members)),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        yield Crowds(started)
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rendezvous", description=__doc__)
    parser.add_argument(
        "--members", default="4,32,128,512,1000", help="numbers of agents, separated by commas (4,32,128,512,1000)"
    )
    parser.add_argument("--processes", type=int, default=2, help="that hold them, but for the first (2)")
    parser.add_argument(
        "--nofile", type=int, default=0, help="descriptors that the planner's process may have (as many as it can get)"
    )
    parser.add_argument("--runs", type=int, default=1, help="of each; the table has the one with the median start (1)")
    parser.add_argument(
        "--folder", default=None, help="for etcd's data, such as /dev/shm (default: the system's temporary folder)"
    )
    arguments = parser.parse_args()
    console = Console(highlight=False)
    results: list[Result] = []
    try:
        for members in map(int, arguments.members.split(",")):
            runs = []
            for _ in range(arguments.runs):
                with tempfile.TemporaryDirectory(prefix="elasticjob-rendezvous-", dir=arguments.folder) as folder:
                    runs.append(measure(members, arguments.processes, Path(folder), arguments.nofile))
            middle = statistics.median_high(run.start.seconds for run in runs)
            results.append(next(run for run in runs if run.start.seconds == middle))
            console.print(
                f"{members} members: {middle:.2f} s to all ranks, {results[-1].loss.seconds:.2f} s after a loss"
            )
            planners = results[-1].takeover.planners
            console.print(
                f"  {results[-1].takeover.seconds:.2f} s after the loss of the planner, with {planners} others that "
                "planned"
            )
    except CrowdError as error:
        console.print(f"[bold red]{error}[/]")
    for one in table(results):
        console.print(one)
    console.print(verdict(results))
    console.print(f"load of this machine now: {os.getloadavg()[0]:.1f}")
    return 0 if len(results) == len(arguments.members.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())
