"""What happens in a random run, and what is said of it, from lines that worker processes could have written."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.random_run.faults import Kind, draw
from benchmarks.random_run.verdict import History, difference, history, lost_and_repeated, stalls
from benchmarks.recovery.ledger import Ledger

LEAVES_ONE = {Kind.KILL, Kind.NODE, Kind.LEAVE, Kind.FREEZE}


@pytest.mark.parametrize(
    ("healthy", "frozen", "agents", "expected"),
    [
        ("abcd", False, 4, {*Kind}),
        ("abcd", False, 5, {*Kind} - {Kind.JOIN}),  # there is a spare
        ("abc", True, 4, {*Kind} - {Kind.FREEZE, Kind.SUSPEND}),
        ("ab", False, 2, LEAVES_ONE - {Kind.LEAVE} | {Kind.JOIN, Kind.SUSPEND}),  # two members are the least
        ("ab", False, 4, LEAVES_ONE | {Kind.JOIN, Kind.SUSPEND}),
        ("a", False, 4, {Kind.JOIN, Kind.SUSPEND}),  # it alone has the state
        ("a", False, 5, {Kind.SUSPEND}),
        ("", False, 4, {Kind.JOIN}),  # a world is being formed
    ],
)
def test_a_process_with_the_state_survives_every_fault(
    healthy: str, frozen: bool, agents: int, expected: set[Kind]
) -> None:
    chance = random.Random(0)
    drawn = [draw(chance, healthy=healthy, frozen=frozen, agents=agents) for _ in range(200)]
    assert {fault.kind for fault in drawn if fault is not None} == expected
    assert all(set(fault.members) < set(healthy) for fault in drawn if fault is not None and fault.members)


def trained(*lines: str) -> History:
    """`process line`, as in the logs."""
    ledger = Ledger()
    for line in lines:
        process, _, text = line.partition(" ")
        ledger.read(process, text)
    return history(ledger.begun, ledger.commits)


UNDISTURBED = trained("a t 1 0 3,4", "a c 0.1 1 0 1", "a t 2 0 1,2", "a c 0.2 2 0 1")


def test_a_step_that_is_interrupted_or_taken_again_counts_once() -> None:
    found = trained(
        *("a t 1 1 3", "b t 1 1 4", "a c 0.1 1 1 2"),  # b was interrupted, and a's step counts
        *("a t 2 2 1", "b t 2 2 2", "b c 0.2 2 2 2"),  # b is killed: only it had committed
        *("a t 2 3 1,2", "a c 0.4 2 3 1"),
    )
    assert lost_and_repeated(found, UNDISTURBED) == (0, 0)
    assert found.repeated == 1
    assert found.first == [0.1, 0.2]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a t 1 1 3,4", "a c 0.1 1 1 1"], (2, 0)),
        (["a t 1 1 3,4", "a c 0.1 1 1 1", "a t 2 1 1", "a c 0.2 2 1 1"], (1, 0)),
        (["a t 1 1 3,4", "a c 0.1 1 1 1", "a t 2 1 1,2,3", "a c 0.2 2 1 1"], (0, 1)),
        (["a t 1 1 3,4", "b t 1 1 4", "a c 0.1 1 1 2", "a t 2 1 1,2", "a c 0.2 2 1 2"], (0, 1)),
        (["a t 1 1 1,2", "a c 0.1 1 1 1", "a t 2 1 3,4", "a c 0.2 2 1 1"], (4, 4)),
    ],
)
def test_samples_that_are_missing_or_used_twice_are_found(lines: list[str], expected: tuple[int, int]) -> None:
    assert lost_and_repeated(trained(*lines), UNDISTURBED) == expected


def test_a_pause_counts_for_the_fault_that_began_it() -> None:
    steps = [0.1, 0.2, 0.3, 1.3, 1.4, 1.5, 1.6, 1.9, 2.0]
    assert stalls(steps, [0.25, 0.9, 1.45]) == pytest.approx([0.9, 0.0, 0.2])
    assert stalls([], []) == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.0]}, ""),
        ({"a": [1, 2.0]}, {"a": [1, 2.5]}, "state.a[1]: 2.0 and 2.5"),
        ({"a": 1}, {"b": 1}, "state: ['a'] and ['b']"),
        ([1], [1, 2], "state: 1 and 2 items"),
        ([1], [True], "state[0]: int and bool"),
    ],
)
def test_a_difference_between_states_is_named(one: Any, other: Any, expected: str) -> None:
    assert difference(one, other) == expected
