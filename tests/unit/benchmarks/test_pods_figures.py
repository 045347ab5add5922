"""The figures of `make bench-pods`, from lines that worker processes could have written."""

from __future__ import annotations

import json

import pytest

from benchmarks.etcd import parse_metrics
from benchmarks.pods.measure import Recovery, Worker, newest_world, parse_log, recovery


def worker(rank: int, world: int, began: float, resumed: int, times: list[float]) -> Worker:
    steps = tuple((time, resumed + number) for number, time in enumerate(times, 1))
    return Worker(member=f"agent-{rank}", pid=1, rank=rank, world=world, began=began, resumed=resumed, steps=steps)


def crash() -> list[Worker]:
    """Two workers do ten steps a second until 2.0 s; then both are replaced, from the checkpoint of step 18 of 20."""
    before, after = [n / 10 for n in range(1, 21)], [2.5 + n / 10 for n in range(1, 21)]
    return [
        *(worker(0, 2, 0.0, 0, before), worker(1, 2, 0.0, 0, before)),
        *(worker(0, 2, 2.2, 18, after), worker(1, 2, 2.2, 18, after)),
    ]


def test_a_crash_costs_the_time_to_the_next_first_step_and_the_steps_repeated() -> None:
    cost = recovery(crash(), event=2.05, world=2)
    assert cost.first_step == pytest.approx(0.55)
    assert cost.stall == pytest.approx(0.6)
    assert cost.steps_lost == 2


def test_worker_processes_from_before_the_event_are_no_recovery() -> None:
    assert recovery(crash()[:2], event=1.0, world=2) == Recovery(first_step=None, stall=None, steps_lost=None)
    assert recovery(crash(), event=2.05, world=3).first_step is None


def test_a_join_stalls_the_job_only_while_no_step_is_done() -> None:
    old = [n / 10 for n in range(1, 60)]
    joined = [6.4 + n / 10 for n in range(1, 20)]
    cost = recovery(
        [worker(0, 1, 0.0, 0, old), worker(0, 2, 6.1, 59, joined), worker(1, 2, 6.1, 59, joined)], event=1.0, world=2
    )
    assert cost.first_step == pytest.approx(5.5)
    assert cost.stall == pytest.approx(0.6)
    assert cost.steps_lost == 0


def test_two_restarts_lose_steps_twice() -> None:
    workers = [
        worker(0, 2, 0.0, 0, [0.1, 0.2, 0.3, 0.4]),
        worker(0, 3, 1.0, 3, [1.1, 1.2]),
        worker(0, 2, 2.0, 4, [2.1]),
    ]
    assert recovery(workers, event=0.5, world=2).steps_lost == 1 + 1


def test_a_group_without_a_step_loses_nothing_more() -> None:
    workers = [worker(0, 2, 0.0, 0, [0.1, 0.2, 0.3]), worker(0, 3, 1.0, 2, []), worker(0, 2, 2.0, 2, [2.1])]
    assert recovery(workers, event=0.5, world=2).steps_lost == 1


def test_a_world_consists_of_the_newest_worker_process_of_each_rank() -> None:
    assert [one.began for one in newest_world(crash(), 2, 0.0)] == [2.2, 2.2]
    assert newest_world(crash()[:3], 2, since=2.1) == []
    assert newest_world(crash(), 2, since=2.3) == []


def test_an_unfinished_log_is_read_up_to_its_last_whole_line() -> None:
    head = {"member": "a", "pid": 7, "rank": 1, "world": 4, "began": 1.5, "resumed": 3}
    text = json.dumps(head) + "\n2.5 4\n2.6"
    assert parse_log(text) == Worker(member="a", pid=7, rank=1, world=4, began=1.5, resumed=3, steps=((2.5, 4),))
    assert parse_log(text[:10]) is None


def test_etcds_metrics_are_summed_over_labels() -> None:
    text = '# HELP x\netcd_a{t="1"} 2\netcd_a{t="2"} 3\netcd_b 1.5e3\n'
    assert parse_metrics(text) == {"etcd_a": 5.0, "etcd_b": 1500.0}
