"""What a change costs, from what worker processes could have written."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import pytest

from hack.chaos.costs import Commit, change, commits_of, longest_pause, newest_world, samples_lost, usual_step
from hack.chaos.ledger import Done, Process, Work


class Trained(NamedTuple):
    """A process took a step at each of these times, from step `first` on, with a sample of its own in each."""

    process: str
    generation: str
    first: int
    times: list[float]
    world: int = 2


class Ledger:
    def __init__(self, *course: Trained) -> None:
        self.by_name: dict[str, Process] = {}
        self.add(*course)

    def add(self, *course: Trained) -> None:
        for process, generation, first, times, world in course:
            for step, time in enumerate(times, first):
                self.work(process, step, sample(step, process), generation=generation)
                before = self.by_name[process]
                done = (*before.done, Done(step, time, generation, world))
                self.by_name[process] = dataclasses.replace(before, done=done)

    def work(self, process: str, step: int, *samples: int, generation: str = "") -> None:
        """It begins with a step."""
        before = self.by_name.get(process, Process(member=process, process=1, rank=0, world=1))
        begun = (*before.work, Work(step, 0, samples, generation))
        self.by_name[process] = dataclasses.replace(before, work=begun)

    @property
    def processes(self) -> list[Process]:
        return list(self.by_name.values())

    @property
    def commits(self) -> list[Commit]:
        return commits_of(self.processes)


def name(process: str) -> str:
    return f"{process}.0.0.1"


def sample(step: int, process: str) -> int:
    return step * 100 + ord(process)


def killed() -> Ledger:
    """Two processes take ten steps a second until 1.0; `b` is killed at 1.05, and replaced at 2.0 by `c`."""
    ledger = Ledger(*(Trained(process, "1", 1, [n / 10 for n in range(1, 11)]) for process in ("a", "b")))
    ledger.work("b", 11, sample(11, "b"), generation="1")
    ledger.add(Trained("a", "2", 11, [1.25 + n / 10 for n in range(8)], world=1))
    ledger.work("a", 11, sample(11, "a"), sample(11, "b"), generation="2")
    ledger.add(*(Trained(process, "3", 19, [2.1 + n / 10 for n in range(5)]) for process in ("a", "c")))
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


FOUR, TWO = [0.1, 0.2, 0.3, 0.4], [0.1, 0.2]
ONCE = [Trained("a", "1", 1, FOUR), Trained("b", "2", 3, [1.0])]
TWICE = [Trained("a", "1", 1, FOUR), Trained("b", "2", 1, [1.0, 1.1]), Trained("c", "3", 3, [1.4])]
ALONE = [Trained("a", "1", 1, TWO), Trained("b", "1", 1, [*TWO, 0.3]), Trained("a", "2", 3, [0.5])]


@pytest.mark.parametrize(
    ("lost", "course", "event", "victims"),
    [
        pytest.param(2, ONCE, 0.45, [], id="after the checkpoint"),
        pytest.param(0, TWICE, 1.2, [], id="not again what an earlier change has lost"),
        pytest.param(0, ALONE, 0.31, [name("b")], id="not what only the victim has committed"),
    ],
)
def test_steps_that_are_taken_again_are_lost(
    lost: int, course: list[Trained], event: float, victims: list[str]
) -> None:
    cost = change(Ledger(*course).commits, event, victims=victims)
    assert cost is not None
    assert cost.steps_lost == lost


def test_samples_are_lost_that_no_process_trains_on() -> None:
    assert samples_lost(killed().processes) == 0, "others took the share"
    ledger = Ledger(Trained("a", "1", 1, TWO), Trained("b", "1", 1, TWO))
    ledger.work("a", 3, sample(3, "a"))
    ledger.work("b", 3, sample(3, "b"), sample(4, "b"))
    assert samples_lost(ledger.processes) == 0, "both may still commit it"
    ledger.add(Trained("a", "2", 3, [0.5]))
    ledger.work("a", 4, sample(5, "a"))
    assert samples_lost(ledger.processes) == 2, "b's share; a took the same sample again"


def test_a_commit_of_another_process_counts_for_all_of_its_generation() -> None:
    ledger = Ledger(Trained("a", "1", 1, [0.1]))
    ledger.work("b", 1, 7, generation="1")
    ledger.add(Trained("a", "2", 2, [0.4]))
    assert samples_lost(ledger.processes) == 0


def test_pauses_and_usual_steps_are_those_between_any_steps() -> None:
    commits = Ledger(Trained("a", "1", 1, [0.1, 0.2, 0.9]), Trained("b", "1", 1, [0.12, 0.6, 0.9])).commits
    assert longest_pause(commits, 0.1, 1.0) == pytest.approx(0.4)
    assert longest_pause(commits, 0.1, 7.0) == math.inf
    assert usual_step(Ledger(Trained("a", "1", 1, [0.0, 0.1, 0.2, 0.3, 5.0])).commits) == pytest.approx(0.1)


def test_a_world_is_complete_once_each_of_its_processes_has_taken_a_step() -> None:
    ledger = Ledger()
    for more, world in (
        (Trained("a", "1", 1, [0.1]), []),
        (Trained("b", "1", 1, [0.1]), ["a", "b"]),
        (Trained("a", "2", 2, [0.4], world=1), ["a"]),
    ):
        ledger.add(more)
        assert [process.member for process in newest_world(ledger.processes)] == world
