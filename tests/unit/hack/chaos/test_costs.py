"""What a change costs, from what worker processes could have written."""

from __future__ import annotations

import dataclasses
import math

import pytest

from hack.chaos.costs import Commit, change, commits_of, longest_pause, newest_world, samples_lost, usual_step
from hack.chaos.ledger import Done, Process, Work


class Ledger:
    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}

    def add(self, name: str, *, work: tuple[Work, ...] = (), done: tuple[Done, ...] = ()) -> None:
        empty = Process(member=name, process=1, rank=0, world=1)
        before = self.processes.get(name, empty)
        self.processes[name] = dataclasses.replace(before, work=before.work + work, done=before.done + done)

    @property
    def commits(self) -> list[Commit]:
        return commits_of(self.processes.values())

    @property
    def samples_lost(self) -> int:
        return samples_lost(list(self.processes.values()))


def name(process: str) -> str:
    return f"{process}.0.0.1"


def trained(ledger: Ledger, process: str, generation: str, first: int, times: list[float], *, world: int = 2) -> None:
    """One sample per step and process."""
    for step, time in enumerate(times, first):
        work = Work(step, 0, (sample(step, process),), generation)
        ledger.add(process, work=(work,), done=(Done(step, time, generation, world),))


def sample(step: int, process: str) -> int:
    return step * 100 + ord(process)


def killed() -> Ledger:
    """Two processes take ten steps a second until 1.0; `b` is killed at 1.05, and replaced at 2.0 by `c`."""
    ledger = Ledger()
    for process in ("a", "b"):
        trained(ledger, process, "1", 1, [n / 10 for n in range(1, 11)])
    ledger.add("b", work=(Work(11, 0, (sample(11, "b"),), "1"),))
    trained(ledger, "a", "2", 11, [1.25 + n / 10 for n in range(8)], world=1)
    ledger.add("a", work=(Work(11, 0, (sample(11, "a"), sample(11, "b")), "2"),))
    for process in ("a", "c"):
        trained(ledger, process, "3", 19, [2.1 + n / 10 for n in range(5)])
    return ledger


def test_a_kill_costs_the_time_to_the_survivors_next_step() -> None:
    cost = change(killed().commits, 1.05, victims=[name("b")])
    assert cost is not None
    assert cost.first_step == pytest.approx(0.2)
    assert cost.stall == pytest.approx(0.15)
    assert (cost.steps_lost, cost.world) == (0, 1)


def test_a_replacement_costs_the_pause_at_the_change_only() -> None:
    cost = change(killed().commits, 1.25, world=2)
    assert cost is not None
    assert cost.stall == pytest.approx(2.1 - 1.95 - 0.1)
    assert change(killed().commits, 1.25, world=3) is None


def test_steps_after_the_checkpoint_are_lost() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1, 0.2, 0.3, 0.4])
    trained(ledger, "b", "2", 3, [1.0, 1.1])
    cost = change(ledger.commits, 0.45)
    assert cost is not None
    assert cost.steps_lost == 2


def test_steps_that_an_earlier_change_has_lost_do_not_count_again() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1, 0.2, 0.3, 0.4])
    trained(ledger, "b", "2", 1, [1.0, 1.1])
    trained(ledger, "c", "3", 3, [1.4])
    cost = change(ledger.commits, 1.2)
    assert cost is not None
    assert cost.steps_lost == 0


def test_a_step_that_only_the_lost_process_has_committed_is_not_lost() -> None:
    ledger = Ledger()
    for process in ("a", "b"):
        trained(ledger, process, "1", 1, [0.1, 0.2])
    trained(ledger, "b", "1", 3, [0.3])
    trained(ledger, "a", "2", 3, [0.5])
    cost = change(ledger.commits, 0.31, victims=[name("b")])
    assert cost is not None
    assert cost.steps_lost == 0


def test_no_sample_is_lost_if_others_take_the_share() -> None:
    assert killed().samples_lost == 0


def test_samples_of_a_step_that_was_given_up_are_lost() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1, 0.2])
    trained(ledger, "b", "1", 1, [0.1, 0.2])
    ledger.add("a", work=(Work(3, 0, (sample(3, "a"),)),))
    ledger.add("b", work=(Work(3, 0, (sample(3, "b"), sample(4, "b"))),))
    assert ledger.samples_lost == 0, "both may still commit it"
    trained(ledger, "a", "2", 3, [0.5])
    ledger.add("a", work=(Work(4, 0, (sample(5, "a"),)),))
    assert ledger.samples_lost == 2, "b's share; a took the same sample again"


def test_a_commit_of_another_process_counts_for_all_of_its_generation() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1])
    ledger.add("b", work=(Work(1, 0, (7,), "1"),))
    trained(ledger, "a", "2", 2, [0.4])
    assert ledger.samples_lost == 0


def test_the_longest_pause_is_between_two_steps_of_any_process() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1, 0.2, 0.9])
    trained(ledger, "b", "1", 1, [0.12, 0.6, 0.9])
    assert longest_pause(ledger.commits, 0.1, 1.0) == pytest.approx(0.4)
    assert longest_pause(ledger.commits, 0.1, 7.0) == math.inf


def test_the_usual_step_is_the_median() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.0, 0.1, 0.2, 0.3, 5.0])
    assert usual_step(ledger.commits) == pytest.approx(0.1)


def test_a_world_is_complete_once_each_of_its_processes_has_taken_a_step() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1])
    assert newest_world(list(ledger.processes.values())) == []
    trained(ledger, "b", "1", 1, [0.1])
    assert [process.member for process in newest_world(list(ledger.processes.values()))] == ["a", "b"]
    trained(ledger, "a", "2", 2, [0.4], world=1)
    assert [process.member for process in newest_world(list(ledger.processes.values()))] == ["a"]
