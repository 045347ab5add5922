"""Which rank differs from the others, or is behind them, according to flight recorders."""

from __future__ import annotations

import json
from typing import Any

import pytest
from elasticjob_runtime.contract.collectives import (
    DEFAULT_GROUP,
    SHARED_CALLS,
    Call,
    Calls,
    behind,
    calls_of,
    first_difference,
    open_call,
    pack,
    unpack,
)


def entry(number: int, what: str = "all_reduce", size: int = 4, group: str = DEFAULT_GROUP, **fields: Any) -> Any:
    return {
        "process_group": ["0", group],
        "collective_seq_id": number,
        "is_p2p": False,
        "profiling_name": f"gloo:{what}",
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": True,
        **fields,
    }


def recorder(*entries: Any) -> Calls:
    return calls_of({"entries": list(entries)})


USUAL = recorder(entry(1), entry(2, retired=False))
FIRST, SECOND = entry(1), entry(2, retired=False)

DIFFERENCES: dict[str, tuple[dict[int, Calls], tuple[int, ...]]] = {
    "none": ({0: USUAL, 1: USUAL}, ()),
    "no recorder": ({}, ()),
    "other sizes: the majority is right": ({0: USUAL, 1: recorder(FIRST, entry(2, size=5)), 2: USUAL}, (1,)),
    "other types": ({0: USUAL, 1: recorder(FIRST, entry(2, input_dtypes=["Half"])), 2: USUAL}, (1,)),
    "another order": ({0: USUAL, 1: USUAL, 2: recorder(FIRST, entry(2, "all_gather")), 3: USUAL}, (2,)),
    "two ranks: both": ({0: USUAL, 1: recorder(FIRST, entry(2, size=5))}, (0, 1)),
    "two and two: all": (
        {0: USUAL, 1: USUAL, 2: recorder(entry(1, size=5)), 3: recorder(entry(1, size=5))},
        (0, 1, 2, 3),
    ),
    "only the first counts: what follows is a consequence": (
        {0: USUAL, 1: recorder(entry(1, size=9), SECOND), 2: recorder(FIRST, entry(2, size=5))},
        (1,),
    ),
    "a rank whose recorder no longer has the first ones": ({0: USUAL, 1: recorder(SECOND), 2: USUAL}, ()),
    "a rank that is behind": ({0: USUAL, 1: recorder(FIRST)}, ()),
    "another shape of as many elements": (
        {0: USUAL, 1: recorder(FIRST, entry(2, input_sizes=[[2, 2]], retired=False))},
        (),
    ),
    "another process group": ({0: USUAL, 1: recorder(entry(1, size=9, group="pipeline"))}, ()),
    "sizes that may differ": ({0: recorder(entry(1, "all_to_all", 3)), 1: recorder(entry(1, "all_to_all", 5))}, ()),
    "sends and receives": ({0: USUAL, 1: recorder(entry(1, "send", is_p2p=True), *[FIRST, SECOND])}, ()),
    "a group that was made again: its past does not count": (
        {0: recorder(entry(1, size=9), entry(2, size=9), FIRST, SECOND), 1: USUAL},
        (),
    ),
    "another line alone accuses no rank": (
        {0: USUAL, 1: recorder(FIRST, {**SECOND, "frames": [{"filename": "/app/other.py", "line": 3}]})},
        (),
    ),
}


@pytest.mark.parametrize(("recorders", "ranks"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_the_rank_that_differs_is_found(recorders: dict[int, Calls], ranks: tuple[int, ...]) -> None:
    found = first_difference(recorders)
    assert (found.ranks if found is not None else ()) == ranks


def test_a_difference_is_described_with_the_lines_that_are_known() -> None:
    frames = [{"filename": "/lib/torch/distributed/c10d.py", "line": 9}, {"filename": "/app/train.py", "line": 31}]
    odd = recorder(FIRST, entry(2, "all_gather", size=5, frames=frames))
    found = first_difference({0: USUAL, 1: odd, 2: USUAL})
    assert found is not None
    assert found.why == (
        "collective 2 differs between ranks: rank 1 calls all_gather [[5]] Float at train.py:31, "
        "rank 0 calls all_reduce [[4]] Float"
    )


def test_in_a_hang_a_collective_that_is_over_on_all_ranks_is_not_the_cause() -> None:
    recorders = {0: USUAL, 1: recorder(entry(1, size=9), SECOND), 2: USUAL}
    assert first_difference(recorders) is not None
    assert first_difference(recorders, waiting=True) is None


def test_what_was_begun_before_the_processes_continued_in_place_does_not_count() -> None:
    entries = [entry(1, size=9, time_created_ns=5), entry(1, time_created_ns=20), entry(2)]
    assert calls_of({"entries": entries}, since_ns=10) == recorder(entry(1), entry(2))


BEHIND: dict[str, tuple[dict[int, Calls], tuple[int, ...]]] = {
    "one has not begun what the others wait in": ({0: USUAL, 1: recorder(FIRST), 2: USUAL}, (1,)),
    "it has begun none at all": ({0: USUAL, 1: {}}, (1,)),
    "all wait": ({0: USUAL, 1: USUAL}, ()),
    "none waits": ({0: recorder(FIRST), 1: recorder(FIRST)}, ()),
    "one waits in an earlier collective: its connection is bad, and it is not late": (
        {0: recorder(FIRST, SECOND), 1: recorder(entry(1, retired=False))},
        (),
    ),
    "it began it, and it is over there already": ({0: USUAL, 1: recorder(FIRST, entry(2))}, ()),
    "one that is not in the process group": (
        {0: recorder(entry(1, retired=False, group="pipeline")), 1: recorder(FIRST)},
        (),
    ),
    "a state that says that it is over, as NCCL's": (
        {0: recorder(entry(1, retired=False, state="completed")), 1: {}},
        (),
    ),
}


@pytest.mark.parametrize(("recorders", "ranks"), BEHIND.values(), ids=BEHIND)
def test_the_rank_that_is_behind_is_found(recorders: dict[int, Calls], ranks: tuple[int, ...]) -> None:
    found = behind(recorders)
    assert (found.ranks if found is not None else ()) == ranks


BAD = {
    "a list": [],
    "no entries": {},
    "an entry without fields": {"entries": [{}]},
    "a number in place of a group": {"entries": [entry(1, process_group=7)]},
    "a number without an end": {"entries": [entry(1, collective_seq_id=float("inf"))]},
    "a time without an end": {"entries": [entry(1, time_created_ns=float("inf"))]},
    "a name in place of a number": {"entries": [{**entry(1), "collective_seq_id": "x"}]},
}


@pytest.mark.parametrize("dump", BAD.values(), ids=BAD)
def test_what_is_no_recorder_is_refused(dump: Any) -> None:
    with pytest.raises(ValueError, match=r"flight recorder|invalid literal"):
        calls_of(dump)


def test_a_rank_shares_its_newest_collectives_in_few_bytes() -> None:
    calls = recorder(*(entry(number, size=10**9, frames=[]) for number in range(1, 2001)))
    groups = {f"group {number}": calls[DEFAULT_GROUP] for number in range(99)}
    text = json.dumps(pack({**groups, **calls}))
    shared = unpack(json.loads(text))
    assert len(text) < 4096
    assert shared[DEFAULT_GROUP] == list(calls[DEFAULT_GROUP][-SHARED_CALLS:])
    assert open_call(shared) is None


@pytest.mark.parametrize(
    "packed",
    [
        None,
        [],
        {"group": 1},
        {"group": [[1]]},
        {"group": [["x", "", True, ""]]},
        {"group": [[float("inf"), "", True, ""]]},
    ],
)
def test_what_no_rank_has_shared_says_nothing(packed: Any) -> None:
    assert unpack(packed) == {}


def test_a_call_knows_its_operation() -> None:
    assert Call(1, "all_reduce [[4]] Float", over=False).operation == "all_reduce"
