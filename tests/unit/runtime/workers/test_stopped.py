"""When a worker process that a signal has stopped counts as failed."""

from __future__ import annotations

import signal

import pytest
from elasticjob_runtime.workers.stopped import STALL, StoppedProcesses

TIMEOUT = 2.0
A, B = {1: int(signal.SIGSTOP)}, {2: int(signal.SIGTSTP)}
NONE: dict[int, int] = {}

LATE = TIMEOUT + STALL
"""s after which an agent that looks again stood still itself."""

HISTORIES = {
    "no process is stopped": ([(0.0, NONE), (2.0, NONE)], NONE),
    "stopped for less than the timeout": ([(0.0, A), (1.9, A)], NONE),
    "stopped for the timeout": ([(0.0, A), (2.0, A)], A),
    "continued in time": ([(0.0, A), (1.0, NONE), (2.0, NONE)], NONE),
    "continued in time and stopped again": ([(0.0, A), (1.0, NONE), (1.5, A), (2.0, A)], NONE),
    "each process has its own time": ([(0.0, A), (1.0, {**A, **B}), (2.0, {**A, **B})], A),
    "two at once": ([(0.0, {**A, **B}), (2.0, {**A, **B})], {**A, **B}),
    "the agent stood still, too": ([(0.0, A), (LATE, A)], NONE),
    "the agent stood still, and it remains stopped": ([(0.0, A), (LATE, A), (LATE + 2.0, A)], A),
    "a process that ended": ([(0.0, A), (1.0, NONE), (2.0, B)], NONE),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_process_counts_as_failed_once_it_has_been_stopped_for_the_timeout(name: str) -> None:
    looks, failed = HISTORIES[name]
    processes = StoppedProcesses(TIMEOUT)
    *_, last = [processes.look(stopped, now) for now, stopped in looks]
    assert last == failed


def test_a_process_is_given_up_only_once() -> None:
    processes = StoppedProcesses(TIMEOUT)
    found = [processes.look(A, now) for now in (0.0, 2.0, 2.1, 2.2)]
    assert found == [NONE, A, NONE, NONE]


def test_a_timeout_of_0_disables_it() -> None:
    processes = StoppedProcesses(0.0)
    assert [processes.look(A, now) for now in (0.0, 1000.0)] == [NONE, NONE]
    assert processes.deadline is None


def test_there_is_a_deadline_only_while_a_process_is_stopped() -> None:
    processes = StoppedProcesses(TIMEOUT)
    deadlines = [processes.deadline]
    for now, stopped in ((10.0, A), (11.0, {**A, **B}), (11.5, B), (12.0, NONE)):
        processes.look(stopped, now)
        deadlines.append(processes.deadline)
    assert deadlines == [None, 12.0, 12.0, 13.0, None]
