"""The quick start's table, from the events that agents write."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hack.quickstart.timeline import (
    AgentEvent,
    Change,
    Kind,
    ProcessLine,
    Seen,
    StepLine,
    parse_event,
    parse_output,
    problem,
    rows,
)


def event(time: float, member: str, name: str, round_number: int, **fields: object) -> AgentEvent:
    return AgentEvent(time, member, name, round_number, fields)


def recorded_job() -> Seen:
    """Two agents start, a worker is killed at 20 s, a third agent starts at 30 s and joins."""
    return Seen(
        changes=[
            Change(Kind.START, "", 0.0),
            Change(Kind.WORKER_KILLED, "b", 20.0),
            Change(Kind.AGENT_JOINS, "c", 30.0),
        ],
        events=[
            event(4.0, "a", "ready", 0),
            event(5.0, "b", "ready", 0),
            event(5.1, "a", "plan", 1, change=1, cause="Start"),
            event(5.2, "b", "plan", 1, change=1, cause="Start"),
            event(5.3, "b", "fork", 1, change=1),
            event(5.2, "a", "fork", 1, change=1),
            event(6.0, "a", "first-step", 1, change=1, step=1),
            event(6.1, "b", "first-step", 1, change=1),
            event(20.01, "b", "detect", 0, change=2),
            event(20.03, "b", "plan", 2, change=2, cause="WorkerFailed"),
            event(20.02, "a", "plan", 2, change=2, cause="WorkerFailed"),
            event(20.05, "a", "stop", 2, change=2),
            event(20.1, "a", "fork", 2, change=2),
            event(20.2, "b", "fork", 2, change=2),
            event(20.3, "a", "restore", 2, change=2),
            event(20.5, "a", "first-step", 2, change=2, step=99),
            event(35.0, "c", "ready", 0),
            event(35.1, "a", "plan", 3, change=3, cause="MemberJoined"),
            event(35.1, "c", "plan", 3, change=1, cause="MemberJoined"),
            event(35.25, "a", "stop", 3, change=3, seconds=0.05),
            event(35.3, "c", "fork", 3, change=1),
            event(35.7, "a", "first-step", 3, change=3, step=201),
        ],
        steps=[
            *(StepLine(1, 0, 2, "started"), StepLine(1, 1, 2), StepLine(1, 100, 2)),
            *(StepLine(2, 98, 2, "resumed"), StepLine(2, 99, 2), StepLine(2, 200, 2)),
            *(StepLine(3, 200, 3, "resumed"), StepLine(3, 201, 3), StepLine(3, 300, 3, "finished")),
        ],
        accuracy=0.98,
        exit_codes={"a": 0, "b": 0, "c": 0},
    )


def recorded_session() -> Seen:
    """Two agents start, b's process is killed at 20 s, its replacement joins at 21 s, and agent c at 35 s."""
    return Seen(
        is_session=True,
        changes=[
            Change(Kind.START, "", 0.0),
            Change(Kind.WORKER_KILLED, "b", 20.0),
            Change(Kind.REPLACEMENT_JOINS, "b", 20.0),
            Change(Kind.AGENT_JOINS, "c", 30.0),
        ],
        events=[
            event(5.0, "a", "plan", 1, change=1, cause="Start", world_size=2, since=5.0),
            event(6.0, "a", "first-step", 1, change=1, step=1),
            event(20.02, "a", "plan", 2, change=2, cause="WorkerFailed", world_size=1, since=0.02),
            event(20.03, "a", "interrupt", 2, change=2, seconds=0.01),
            event(20.04, "a", "form", 2, change=2),
            event(20.05, "a", "agree", 2, change=2),
            event(20.1, "a", "first-step", 2, change=2, step=101),
            event(20.1, "a", "change", 2, change=2, steps_lost=0),
            event(21.01, "a", "plan", 3, change=3, cause="MemberJoined", world_size=2, since=0.01),
            event(21.05, "a", "interrupt", 3, change=3, seconds=0.04),
            event(21.1, "a", "first-step", 3, change=3, step=110),
            event(34.0, "c", "first-step", 0, change=1),
            event(35.01, "a", "plan", 4, change=4, cause="MemberJoined", world_size=3, since=0.01),
            event(35.02, "c", "plan", 4, change=1, cause="MemberJoined", world_size=3, since=0.02),
            event(35.2, "a", "first-step", 4, change=4, step=300),
        ],
        steps=[StepLine(1, 1, 0), StepLine(1, 400, 3, "finished")],
        exit_codes={"a": 0, "b": 0, "c": 0},
        pids={"a": [10], "b": [11, 12], "c": [13]},
    )


def rounded(figures: Mapping[str, float]) -> dict[str, int]:
    return {name: round(value) for name, value in figures.items()}


def test_a_killed_worker_process_counts_from_the_kill() -> None:
    row = rows(recorded_job())[1]
    assert rounded(row.phases) == {"detect": 10, "stop": 50, "plan": 20, "fork": 200, "restore": 300, "first-step": 500}
    assert (row.what, row.world, row.steps_lost, row.paused) == ("b's process killed", 2, 2, 500)


def test_a_join_counts_from_the_moment_at_which_the_joiner_is_ready() -> None:
    row = rows(recorded_job())[2]
    assert rounded(row.phases) == {"stop": 250, "plan": 100, "fork": 300, "first-step": 700}
    assert row.paused is not None
    assert row.warm_up is not None
    assert (round(row.warm_up), round(row.paused), row.world, row.steps_lost) == (5000, 500, 3, 0)


def test_a_start_has_no_detection() -> None:
    row = rows(recorded_job())[0]
    assert rounded(row.phases) == {"plan": 5100, "fork": 5300, "first-step": 6000}
    assert row.paused is None


def test_unobserved_phases_have_no_figures() -> None:
    row = rows(Seen(changes=[Change(Kind.WORKER_KILLED, "b", 1.0)]))[0]
    assert (row.phases, row.paused, row.steps_lost) == ({}, None, None)


def test_a_good_end_has_no_problem() -> None:
    assert problem(recorded_job(), workers=3) == ""


def test_every_bad_end_is_a_failure_that_says_why() -> None:
    good = recorded_job()
    without_join = [change for change in good.changes if change.kind is not Kind.AGENT_JOINS]
    assert "b exited with 1" in problem(dataclasses.replace(good, exit_codes={"a": 0, "b": 1}), 3)
    assert "AGENT_JOINS" in problem(dataclasses.replace(good, changes=without_join), 3)
    assert "c ready to join" in problem(dataclasses.replace(good, events=good.events[:-1]), 3)
    assert "did not finish" in problem(dataclasses.replace(good, steps=good.steps[:-1]), 3)
    assert "3 worker processes were training at the end, not 4" in problem(good, 4)
    assert "below" in problem(dataclasses.replace(good, accuracy=0.5), 3)


def test_processes_with_a_session_are_interrupted_twice_by_a_killed_one() -> None:
    _, killed, replaced, _ = rows(recorded_session())
    assert rounded(killed.phases) == {"plan": 20, "interrupt": 30, "form": 40, "agree": 50, "first-step": 100}
    assert (killed.world, killed.steps_lost, killed.warm_up) == (1, 0, None)
    assert rounded(replaced.phases) == {"plan": 10, "interrupt": 50, "first-step": 100}
    assert replaced.paused is not None
    assert replaced.warm_up is not None
    assert (replaced.world, round(replaced.paused), round(replaced.warm_up)) == (2, 90, 1000)


def test_what_a_joiner_with_a_session_does_alone_is_no_phase_of_the_join() -> None:
    assert rounded(rows(recorded_session())[3].phases) == {"plan": 10, "first-step": 200}


def test_a_restarted_process_or_a_lost_step_fails_a_session() -> None:
    good = recorded_session()
    assert problem(good, workers=3) == ""
    assert "process of a was to continue" in problem(dataclasses.replace(good, pids={"a": [10, 14]}), 3)
    lost = event(20.1, "a", "change", 2, change=2, steps_lost=4)
    assert "4 steps were taken again" in problem(dataclasses.replace(good, events=[*good.events, lost]), 3)
    without = [change for change in good.changes if change.kind is not Kind.REPLACEMENT_JOINS]
    assert "REPLACEMENT_JOINS" in problem(dataclasses.replace(good, changes=without), 3)


def test_an_incomplete_line_is_no_event() -> None:
    assert parse_event('{"time": 1.5, "member": "a", "event": "phase", "phase": "pl') is None
    found = parse_event('{"time": 1.5, "member": "a", "event": "phase", "phase": "detect", "round": null, "change": 2}')
    assert found == AgentEvent(1.5, "a", "detect", 0, {"change": 2})
    assert found.change == ("a", 2)


def test_the_examples_lines_are_read() -> None:
    assert parse_output(1, "step=120 epoch=5 world=4 loss=0.1234") == StepLine(1, 120, 4)
    assert parse_output(1, "finished step=600 epoch=26 world=4") == StepLine(1, 600, 4, "finished")
    assert parse_output(1, "accuracy=0.9875") == 0.9875
    assert parse_output(1, "step=120 epoch=1 loss=0.1234") == StepLine(1, 120, 0)
    assert parse_output(1, "finished step=600 with 4 workers") == StepLine(1, 600, 4, "finished")
    assert parse_output(1, "pid=77 rank=0 trains with 3 workers after step=34") == ProcessLine(77)
    assert parse_output(1, "hello") is None
