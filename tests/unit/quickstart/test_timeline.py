"""The quick start's table: from what the agents wrote to what a person reads."""

from __future__ import annotations

import dataclasses

from tests.quickstart.timeline import AgentEvent, Change, Kind, Seen, StepLine, complaint, parse_event, parse_output, rows


def event(time: float, member: str, name: str, epoch: int, **fields: object) -> AgentEvent:
    return AgentEvent(time, member, name, epoch, fields)


def story() -> Seen:
    """Two agents start, a worker is killed at 20 s, a third agent starts at 30 s and joins."""
    return Seen(
        changes=[Change(Kind.START, "", 0.0), Change(Kind.WORKER_KILLED, "b", 20.0), Change(Kind.AGENT_JOINS, "c", 30.0)],
        events=[
            event(5.1, "a", "plan", 1, reason="Start"),
            event(5.2, "b", "plan", 1, reason="Start"),
            event(5.3, "b", "start", 1),
            event(5.2, "a", "start", 1),
            event(6.0, "a", "first-step", 1, step=1),
            event(20.03, "b", "plan", 2, reason="WorkerFailed"),
            event(20.02, "a", "plan", 2, reason="WorkerFailed"),
            event(20.05, "a", "stop", 1),
            event(20.1, "a", "start", 2),
            event(20.2, "b", "start", 2),
            event(20.5, "a", "first-step", 2, step=99),
            event(35.1, "a", "plan", 3, reason="MemberJoined"),
            event(35.2, "a", "stop", 2),
            event(35.3, "c", "start", 3),
            event(35.7, "a", "first-step", 3, step=201),
        ],
        failures={1: 20.01},
        ready={"a": 4.0, "b": 5.0, "c": 35.0},
        steps=[
            *(StepLine(1, 0, 2, "started"), StepLine(1, 1, 2), StepLine(1, 100, 2)),
            *(StepLine(2, 98, 2, "resumed"), StepLine(2, 99, 2), StepLine(2, 200, 2)),
            *(StepLine(3, 200, 3, "resumed"), StepLine(3, 201, 3), StepLine(3, 300, 3, "finished")),
        ],
        accuracy=0.98,
        exit_codes={"a": 0, "b": 0, "c": 0},
    )


def rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def test_a_killed_worker_is_counted_from_the_kill() -> None:
    row = rows(story())[1]
    figures = [rounded(value) for value in (row.detected, row.planned, row.started, row.first_step, row.stood_still)]
    assert figures == [10, 20, 200, 500, 500]
    assert (row.what, row.world, row.steps_lost) == ("b's worker killed", 2, 2)


def test_a_join_is_counted_from_the_moment_the_newcomer_is_ready() -> None:
    row = rows(story())[2]
    figures = [rounded(value) for value in (row.warm_up, row.detected, row.planned, row.first_step, row.stood_still)]
    assert figures == [5000, 0, 100, 700, 500]
    assert (row.world, row.steps_lost) == (3, 0)


def test_the_start_is_noticed_when_the_last_of_the_first_agents_is_ready() -> None:
    row = rows(story())[0]
    assert [rounded(value) for value in (row.detected, row.planned, row.first_step, row.stood_still)] == [5000, 5100, 6000, None]


def test_nothing_is_invented_for_what_was_not_seen() -> None:
    row = rows(Seen(changes=[Change(Kind.WORKER_KILLED, "b", 1.0)]))[0]
    assert (row.detected, row.planned, row.started, row.first_step, row.stood_still, row.steps_lost) == (None,) * 6


def test_all_is_well() -> None:
    assert complaint(story(), workers=3) == ""


def test_every_wrong_end_is_told() -> None:
    good = story()
    without_join = [change for change in good.changes if change.kind is not Kind.AGENT_JOINS]
    assert "b exited with 1" in complaint(dataclasses.replace(good, exit_codes={"a": 0, "b": 1}), 3)
    assert "AGENT_JOINS" in complaint(dataclasses.replace(good, changes=without_join), 3)
    assert "c joins" in complaint(dataclasses.replace(good, events=good.events[:-1]), 3)
    assert "end" in complaint(dataclasses.replace(good, steps=good.steps[:-1]), 3)
    assert "3 workers trained at the end, not 4" in complaint(good, 4)
    assert "below" in complaint(dataclasses.replace(good, accuracy=0.5), 3)


def test_a_torn_line_is_no_event() -> None:
    assert parse_event('{"time": 1.5, "member": "a", "event": "pl') is None
    found = parse_event('{"time": 1.5, "member": "a", "event": "plan", "epoch": 2, "reason": "Start"}')
    assert found == AgentEvent(1.5, "a", "plan", 2, {"reason": "Start"})


def test_the_examples_lines_are_read() -> None:
    assert parse_output(1, "step=120 epoch=5 world=4 loss=0.1234") == StepLine(1, 120, 4)
    assert parse_output(1, "finished step=600 epoch=26 world=4") == StepLine(1, 600, 4, "finished")
    assert parse_output(1, "accuracy=0.9875") == 0.9875
    assert parse_output(1, "hello") is None
