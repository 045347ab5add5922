"""Snapshots that the agent holds, through its real socket."""

from __future__ import annotations

import itertools
import logging
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.memory import AgentMemory, agent_memory, agent_memory_of_this_process, limits
from elasticjob_runtime.training.memory.agent_memory import LARGE, MOST_PURPOSES
from elasticjob_runtime.training.session import snapshots

from hack.support import eventually
from tests.unit.runtime.training.memory.conftest import enter_round

pytestmark = pytest.mark.torch

Start = Callable[..., AgentMemory]


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((1000,), float(step))}


def newest_step(of: AgentMemory, what: str = "training") -> int | None:
    found = of.newest(what)
    if found is None:
        return None
    loaded = found.load()
    found.close()
    assert loaded is not None
    assert torch.equal(loaded["weights"], state(loaded["step"])["weights"])
    return int(loaded["step"])


def test_a_new_process_finds_the_last_snapshot_of_the_one_before(process: Start) -> None:
    first = process(1)
    assert newest_step(first) is None
    for step in range(1, 8):
        assert first.keep("training", state(step), step) is not None
    assert newest_step(process(2)) == 7


def test_a_process_continues_in_the_memory_of_the_one_before(process: Start) -> None:
    first = process(1)
    first.keep("training", state(1), 1)
    second = process(2)
    second.keep("training", state(2), 2)
    second.keep("training", state(3), 3)
    (old,), (new,) = first._pairs.values(), second._pairs.values()
    assert [os.fstat(fd).st_ino for fd in new.fds] == [os.fstat(fd).st_ino for fd in old.fds]
    assert newest_step(process(3)) == 3


def test_a_process_that_has_not_ended_keeps_its_memory_for_itself(
    process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still write, for example because it was frozen."""
    first = process(1)
    first.keep("training", state(10), 10)
    second = process(2, ends=False)
    assert newest_step(second) == 10
    second.keep("training", state(5), 5)
    enter_round(monkeypatch, 1)
    first.keep("training", state(11), 11)
    assert newest_step(process(3, ends=False)) == 5


def test_a_late_process_cannot_replace_the_snapshot_of_its_successor(
    process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process(1)
    second = process(2)
    second.keep("training", state(5), 5)
    enter_round(monkeypatch, 1)
    first.keep("training", state(100), 100)
    assert newest_step(process(3)) == 5


def test_another_run_does_not_take_the_snapshot(process: Start) -> None:
    process(1).keep("training", state(5), 5)
    assert newest_step(process(1, run_id="another")) is None


def test_states_of_different_purposes_are_kept_next_to_each_other(process: Start) -> None:
    first = process(1)
    first.keep("last", state(9), 9)
    first.keep("best", state(7), 7)
    first.keep("last", state(10), 10)
    second = process(2)
    assert (newest_step(second, "last"), newest_step(second, "best")) == (10, 7)
    second.keep("last", state(11), 11)
    third = process(3)
    assert (newest_step(third, "last"), newest_step(third, "best")) == (11, 7), "what is not replaced stays"


def test_what_a_predecessor_that_has_not_ended_kept_stays_with_the_agent(process: Start) -> None:
    first = process(1)
    first.keep("last", state(9), 9)
    first.keep("best", state(7), 7)
    process(2, ends=False).keep("last", state(10), 10)
    assert newest_step(process(3, ends=False), "best") == 7


def test_a_damaged_snapshot_is_skipped_for_the_one_before(process: Start, caplog: pytest.LogCaptureFixture) -> None:
    first = process(1)
    for step in (1, 2):
        first.keep("training", state(step), step)
    (pair,) = first._pairs.values()
    buffer = max(pair.buffers, key=lambda item: found.step if (found := item.header()) else -1)
    header = buffer.header()
    assert header is not None
    buffer.memory[header.layout.payload_offset + 100] ^= 1
    assert newest_step(process(2)) == 1
    assert "damaged" in caplog.text


def test_snapshots_of_another_local_rank_are_found(process: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    process(1).keep("training", state(5), 5)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert newest_step(process(2)) is None, "the only local rank"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert newest_step(process(2)) == 5


def test_each_process_has_its_own_place_even_if_local_rank_is_0_in_all(
    process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with --virtual-local-rank."""
    for local_rank in ("0", "1"):
        monkeypatch.setenv(Env.LOCAL_RANK, local_rank)
        agent_memory = process(1, ends=False)
        agent_memory.keep("training", state(5), 5)
    assert [len(agent_memory._link.fetch(rank)) for rank in (0, 1)] == [2, 2]


def test_a_snapshot_costs_the_agent_nothing_after_the_first(process: Start) -> None:
    first = process(1)
    sent: list[int] = []
    keep = first._link.keep
    first._link.keep = lambda step, fds: (sent.append(step), keep(step, fds))[1]  # type: ignore[method-assign,func-returns-value]
    for step in range(1, 10):
        first.keep("training", state(step), step)
    assert sent == [1]


def test_a_state_that_cannot_be_kept_is_no_error(process: Start, caplog: pytest.LogCaptureFixture) -> None:
    first = process(1)
    for step in (1, 2, 3):
        assert first.keep("training", {"a": torch.zeros(3).to_sparse()}, step) is None
    assert caplog.text.count("no snapshots in memory") == 1
    assert first.keep("another", state(1), 1) is not None


def test_no_snapshot_is_taken_where_memory_is_short(
    process: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: 3 << 20)
    first = process(1)
    assert first.keep("large", {"a": torch.zeros(1 << 18)}, 1) is None
    assert "two copies need 2 MiB more, and only 3 MiB are free" in caplog.text
    assert first.keep("small", {"a": torch.zeros(1 << 16)}, 1) is not None


def test_more_states_than_the_agent_can_hold_are_refused(process: Start, caplog: pytest.LogCaptureFixture) -> None:
    first = process(1)
    kept = [first.keep(f"state {number}", state(1), 1) for number in range(MOST_PURPOSES + 1)]
    assert [seconds is not None for seconds in kept] == [True] * MOST_PURPOSES + [False]
    assert "other states" in caplog.text


def test_memory_that_is_no_snapshot_is_ignored(process: Start) -> None:
    for content in (b"", b"x", b"x" * 5000):
        fd = os.memfd_create("other")
        os.write(fd, content)
        link = process(1)._link
        link.keep(1, [fd])
        assert newest_step(process(1)) is None
        link.keep(1, [fd, fd, fd])
        assert newest_step(process(1)) is None
        os.close(fd)


def test_without_an_agent_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "_process", agent_memory._Process())
    monkeypatch.delenv("ELASTICJOB_AGENT_SOCKET", raising=False)
    assert agent_memory_of_this_process() is None


@pytest.mark.usefixtures("new_process")
def test_snapshots_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICJOB_MEMORY_SNAPSHOTS", "0")
    assert agent_memory_of_this_process() is None


@pytest.mark.usefixtures("new_process")
def test_a_forked_child_keeps_nothing() -> None:
    """A process of a data loader, say: the memory is its parent's."""
    assert agent_memory_of_this_process() is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if agent_memory_of_this_process() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert agent_memory_of_this_process() is not None


def test_memory_for_large_states_is_got_while_the_training_goes_on(process: Start) -> None:
    first, large = process(1), {"a": torch.ones(LARGE // 4)}
    calls: list[int] = []

    def state_() -> dict[str, Any]:
        calls.append(1)
        return large

    first.prepare("training", state_)
    eventually(lambda: first.prepare("training", state_), what="the memory is there")
    assert len(calls) == 1
    (pair,) = first._pairs.values()
    assert all(os.fstat(fd).st_blocks * 512 > LARGE for fd in pair.fds)
    assert first.keep("training", large, 1) is not None
    found = process(2).newest("training")
    assert found is not None
    assert found.step == 1


def test_no_memory_is_got_in_advance_for_states_that_cannot_be_kept(
    process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process(1)
    assert first.prepare("sparse", lambda: {"a": torch.zeros(3).to_sparse()})
    monkeypatch.setattr(limits, "free_memory", lambda: LARGE)
    large = {"a": torch.ones(LARGE // 4)}
    first.prepare("large", lambda: large)
    eventually(lambda: first.prepare("large", lambda: large), what="it gave up")
    assert first.keep("large", large, 1) is None


def test_a_longer_interval_is_logged_at_the_step_that_brings_it(
    process: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a snapshot costs is known once a step has passed: the next snapshot may be hundreds of steps away."""
    memory, now = process(1), itertools.count(1.0, 0.01)
    monkeypatch.setattr(snapshots, "agent_memory_of_this_process", lambda: memory)
    monkeypatch.setattr(snapshots, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(memory, "keep", lambda *_: 0.1)
    caplog.set_level(logging.INFO, "elasticjob_runtime.training")
    taken = snapshots.Snapshots("layout")
    lines = []
    for step in (1, 2, 3):
        eventually(lambda: memory.prepare("session layout", lambda: state(1)))
        taken.committed(step, lambda: state(1))
        lines.append([record.getMessage() for record in caplog.records])
    line = "a snapshot in memory takes 0.100 s: one in 2048 steps"
    assert lines == [[], [line], [line]]
