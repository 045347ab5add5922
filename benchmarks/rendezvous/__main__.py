"""`python -m benchmarks.rendezvous`: see `--help`."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

import benchmarks.rendezvous
from benchmarks.operator.process import cpu_seconds, difference
from benchmarks.rendezvous.report import (
    CALLS,
    Counters,
    Crowded,
    Phase,
    Result,
    conclusion,
    parse_metrics,
    table,
)
from hack.cluster.loopback import Etcd
from hack.cluster.output import DIE_WITH_PARENT

LIMIT = 240.0
"""s for one phase."""
PROCESSES = 2
"""Those that hold all members but the first."""


class CrowdError(Exception):
    """Not every member got its rank."""


class Crowds:
    """The processes that hold the members."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._reports: queue.SimpleQueue[Crowded] = queue.SimpleQueue()
        for process in processes:
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def send(self, command: str, to: Sequence[int] | None = None) -> None:
        for number in range(len(self._processes)) if to is None else to:
            stdin = self._processes[number].stdin
            assert stdin is not None
            stdin.write(command + "\n")
            stdin.flush()

    def cpu(self) -> float:
        """CPU time that they have taken, s."""
        return sum(cpu_seconds(process.pid) for process in self._processes if process.poll() is None)

    def wait(self, round_number: int, of: int | None = None) -> list[Crowded]:
        """Waits for the reports on this round, from `of` processes (default: all). Raises CrowdError."""
        end = time.monotonic() + LIMIT
        found: list[Crowded] = []
        while len(found) < (of or len(self._processes)):
            try:
                report = self._reports.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise CrowdError(f"not every member has a rank in round {round_number} after {LIMIT:g} s") from None
            if report.round == round_number:
                found.append(report)
        return found

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._reports.put(Crowded(**json.loads(line)))


def measure(members: int, folder: Path, nofile: int = 0) -> Result:
    """Measures one start of this many members, the loss of the last, and the loss of the first, which is the planner.

    The first has a process of its own, which may open `nofile` descriptors (0: as many as possible).
    """
    with ExitStack() as stack:
        etcd = stack.enter_context(Etcd(folder))
        crowds = stack.enter_context(
            crowds_of(etcd.endpoint.removeprefix("http://"), members, min(PROCESSES, members - 1), nofile)
        )
        last = min(PROCESSES, members - 1)
        ready = crowds.wait(0)
        crowds.send("go", [0])
        time.sleep(0.3)  # so that it registers first
        start, ranked = _phase(etcd, crowds, "go", range(1, last + 1), ready)
        loss, again = _phase(etcd, crowds, "lose", [last], ranked)
        takeover, _ = _phase(etcd, crowds, "lose", [0], [one for one in again if one.planners == 0])
        return Result(members=members, start=start, loss=loss, takeover=takeover)


def _phase(
    etcd: Etcd, crowds: Crowds, command: str, to: Sequence[int], before: Sequence[Crowded]
) -> tuple[Phase, list[Crowded]]:
    """Sends the command, and waits for the next round of the processes that have sent the reports `before`. Returns
    also their reports on it."""
    counted, cpu, began = _counters(etcd), crowds.cpu(), time.time()
    crowds.send(command, to)
    reports = crowds.wait(before[0].round + 1, of=len(before))
    phase = Phase(
        seconds=max(one.at for one in reports) - began,
        etcd=difference(counted, _at_rest(etcd)),
        python_cpu=crowds.cpu() - cpu,
        planners=sum(one.planners for one in reports) - sum(one.planners for one in before),
    )
    return phase, reports


def _at_rest(etcd: Etcd) -> Counters:
    """Once etcd gets no more requests, so that what a phase leaves to do does not count for the next one: members watch
    others than before, after they have started. Raises CrowdError."""
    end, before = time.monotonic() + LIMIT, _counters(etcd)
    while time.monotonic() < end:
        time.sleep(1.0)
        now = _counters(etcd)
        if now[CALLS] == before[CALLS]:
            return now
        before = now
    raise CrowdError(f"members still send requests {LIMIT:g} s after they have their ranks")


def _counters(etcd: Etcd) -> Counters:
    with urllib.request.urlopen(f"{etcd.endpoint}/metrics", timeout=10) as answer:  # noqa: S310 - our own loopback address
        return parse_metrics(answer.read().decode())


@contextmanager
def crowds_of(endpoint: str, members: int, processes: int, nofile: int = 0) -> Iterator[Crowds]:
    """Of a new run. The first member has a process of its own."""
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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rendezvous",
        description=benchmarks.rendezvous.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--members",
        default="4,32,128,512,1000",
        help="numbers of agents, separated by commas (default: 4,32,128,512,1000)",
    )
    parser.add_argument(
        "--nofile", type=int, default=0, help="descriptors of the planner's process (default: as many as possible)"
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="runs of each; the table shows the one with the median start (default: 1)"
    )
    arguments = parser.parse_args()
    console = Console(highlight=False)
    results: list[Result] = []
    try:
        for members in map(int, arguments.members.split(",")):
            runs = []
            for _ in range(arguments.runs):
                with tempfile.TemporaryDirectory(prefix="elasticjob-rendezvous-") as folder:
                    runs.append(measure(members, Path(folder), arguments.nofile))
            middle = statistics.median_high(run.start.seconds for run in runs)
            results.append(next(run for run in runs if run.start.seconds == middle))
            shown = results[-1]
            console.print(
                f"{members} members: all have a rank after {middle:.2f} s, and {shown.loss.seconds:.2f} s after a loss"
            )
            console.print(
                f"  {shown.takeover.seconds:.2f} s after the loss of the planner; new planners: "
                f"{shown.takeover.planners}"
            )
    except CrowdError as error:
        console.print(f"[bold red]{error}[/]")
    for one in table(results):
        console.print(one)
    console.print(conclusion(results))
    console.print(f"load of this machine: {os.getloadavg()[0]:.1f}")
    return 0 if len(results) == len(arguments.members.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())
