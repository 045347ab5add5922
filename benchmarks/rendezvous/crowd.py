"""A process with many members: `python -m benchmarks.rendezvous.crowd`, started and commanded by __main__.py.

in: go                 all members start
in: lose               the last member of this process ends
out: {"round": 1, "at": 1767225600.0, "planners": 1}
     every member of this process has its rank in this round
"""

from __future__ import annotations

import argparse
import heapq
import json
import queue
import resource
import sys
import threading
import time
import traceback

from elasticjob_runtime.contract import Keys
from elasticjob_runtime.etcd import EtcdClient
from elasticjob_runtime.event_loop import EventLoop

from benchmarks.rendezvous.member import LEASE_TTL, BenchMember

POOL = 8
"""Threads that run members, and so members that may wait for etcd at the same time."""


class Crowd:
    """Runs members on a pool of threads."""

    def __init__(self, endpoint: str, run_id: str, first: int, count: int, total: int) -> None:
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[BenchMember] = queue.SimpleQueue()
        self._queued: set[BenchMember] = set()
        self._running: set[BenchMember] = set()
        self._again: set[BenchMember] = set()
        self._timers: list[tuple[float, int, BenchMember]] = []
        self._timer_set = threading.Condition()
        self._ranked: dict[int, int] = {}
        self._peer_loop = EventLoop()
        keys = Keys("/bench", run_id)
        self._members = [
            BenchMember(
                f"m{number:05d}",
                EtcdClient(endpoint, timeout=30.0, probe_interval=LEASE_TTL),
                keys,
                total,
                self._peer_loop,
                self.wake,
                self._got_rank,
            )
            for number in range(first, first + count)
        ]
        self._alive = count

    def start(self) -> None:
        for target in (*[self._work] * POOL, self._run_timers, self._answer_probes):
            threading.Thread(target=target, daemon=True).start()

    def go(self) -> None:
        for member in self._members:
            self.wake(member)

    def lose_one(self) -> None:
        with self._lock:
            self._alive -= 1
            member = self._members[self._alive]
        member.post(member.leave)

    def wake(self, member: BenchMember) -> None:
        """Runs the member soon, in one thread at a time."""
        with self._lock:
            if member in self._running:
                self._again.add(member)
            elif member not in self._queued:
                self._queued.add(member)
                self._ready.put(member)

    def _work(self) -> None:
        while True:
            member = self._ready.get()
            with self._lock:
                self._queued.discard(member)
                self._running.add(member)
            try:
                member.step()
            except Exception:  # noqa: BLE001 - the measurement is void whatever it was; standard error shows why
                traceback.print_exc()
            with self._lock:
                self._running.discard(member)
                again = member in self._again
                self._again.discard(member)
            if again:
                self.wake(member)
            if member.wake_at is not None and not member.gone:
                with self._timer_set:
                    heapq.heappush(self._timers, (member.wake_at, id(member), member))
                    self._timer_set.notify()

    def _run_timers(self) -> None:
        """Wakes members when they are due."""
        while True:
            with self._timer_set:
                while not self._timers or self._timers[0][0] > time.monotonic():
                    self._timer_set.wait(self._timers[0][0] - time.monotonic() if self._timers else None)
                _, _, member = heapq.heappop(self._timers)
            self.wake(member)

    def _answer_probes(self) -> None:
        """Answers probes for all members."""
        while True:
            self._peer_loop.wait(1.0)
            for member in self._members:
                member.peers.tick(time.monotonic())

    def _got_rank(self, round_number: int) -> None:
        with self._lock:
            self._ranked[round_number] = self._ranked.get(round_number, 0) + 1
            complete = self._ranked[round_number] == self._alive
        if complete:
            self.report(round_number)

    def report(self, round_number: int) -> None:
        planners = sum(member.planner for member in self._members)
        print(json.dumps({"round": round_number, "at": time.time(), "planners": planners}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--run-id", required=True)
    for name in ("first", "count", "total"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument(
        "--nofile", type=int, default=0, help="descriptors that this process may have; 0: as many as possible"
    )
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = arguments.nofile or most
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(256 * 1024)
    crowd = Crowd(arguments.endpoint, arguments.run_id, arguments.first, arguments.count, arguments.total)
    crowd.start()
    crowd.report(0)
    steps = {"go": crowd.go, "lose": crowd.lose_one}
    for line in sys.stdin:
        steps[line.strip()]()


if __name__ == "__main__":
    main()
