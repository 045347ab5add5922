"""The phases of a change, from what an agent observes."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import PlanReason
from elasticjob_runtime.telemetry.transitions import Cause, EventRecord, Transitions, cause_of


def phases(records: list[EventRecord]) -> list[tuple[str, float, float]]:
    """(phase, since, seconds), in order."""
    return [(fields["phase"], fields["since"], fields["seconds"]) for name, _, fields in records if name == "phase"]


def durations(records: list[EventRecord]) -> dict[str, Any]:
    """Of the phases that the summary knows: phase -> (since, seconds)."""
    known = {name: one for name, one in summary(records)["phases"].items() if one is not None}
    return {name: pytest.approx((one["since"], one["seconds"])) for name, one in known.items()}


def summary(records: list[EventRecord]) -> dict[str, Any]:
    (fields,) = [fields for name, _, fields in records if name == "change"]
    return fields


def trained() -> Transitions:
    """The transitions of an agent whose first group has trained up to step 100."""
    changes = Transitions()
    changes.caused(Cause.START, 0.0, 0.0)
    changes.planned(1, Cause.START, None, 5.0)
    changes.starting(1, 5.0)
    changes.progressed(1, 6.0)
    changes.progressed(100, 9.0)
    return changes


def test_a_start_has_a_duration_for_each_phase() -> None:
    changes = Transitions()
    records = changes.caused(Cause.START, 100.0, 100.0)
    records += changes.planned(1, Cause.START, None, 105.0, size=3)
    records += changes.starting(2, 105.0)
    for phase, at in (("fork", 105.1), ("connect", 105.5)):
        records += changes.reported(phase, 0, at)
        assert changes.reported(phase, 0, at + 0.05) == [], "the other worker process is not done"
        records += changes.reported(phase, 1, at + 0.2)
    records += changes.reported("first-step", 1, 106.0)
    assert phases(records) == [("plan", 5.0, 5.0), ("fork", 5.3, 0.3), ("connect", 5.7, 0.4), ("first-step", 6.0, 0.3)]
    assert changes.due is not None
    end = summary(changes.tick(changes.due))
    assert (end["cause"], end["round"], end["end"], end["steps_lost"]) == ("Start", 1, "trained", None)
    assert end["phases"]["restore"] is None
    assert end["phases"]["detect"] is None


def test_a_change_in_place_records_its_own_phases() -> None:
    changes = trained()
    records = changes.caused(Cause.MEMBER_LOST, 20.0, 20.01)
    records += changes.planned(2, Cause.MEMBER_LOST, 20.0, 20.03)
    changes.moving(20.03)
    records += changes.reported("interrupt", 0, 20.04)
    records += changes.reported("interrupt", 1, 20.05)
    records += changes.reported("form", 0, 20.07)
    records += changes.reported("agree", 0, 20.08)
    records += changes.reported("first-step", 0, 20.1, step=101)
    records += changes.tick(30.0)
    assert durations(records) == {
        "detect": (0.01, 0.01), "plan": (0.03, 0.02), "interrupt": (0.05, 0.02), "form": (0.07, 0.02),
        "agree": (0.08, 0.01), "first-step": (0.1, 0.02),
    }  # fmt: skip


def test_a_restart_records_each_phase_and_the_steps_lost() -> None:
    changes = trained()
    records = changes.caused(Cause.WORKER_FAILED, 20.0, 20.01)
    changes.stopping(20.01)
    records += changes.planned(2, Cause.WORKER_FAILED, 20.0, 20.03)
    records += changes.stopped(20.05)
    changes.starting(1, 20.06)
    records += changes.reported("fork", 0, 20.07)
    records += changes.reported("connect", 0, 20.2)
    records += changes.reported("restore", 0, 20.4, began=20.25, step=90)
    records += changes.reported("first-step", 0, 20.5)
    records += changes.progressed(91, 20.51)
    expected = {
        "detect": (0.01, 0.01), "stop": (0.05, 0.04), "plan": (0.03, 0.02), "fork": (0.07, 0.01),
        "connect": (0.2, 0.13), "restore": (0.4, 0.15), "first-step": (0.5, 0.1),
    }  # fmt: skip
    end = summary(records)
    assert durations(records) == expected
    assert (end["end"], end["steps_lost"], end["caused_at"]) == ("trained", 10, 20.0)
    assert {name: pytest.approx((since, seconds)) for name, since, seconds in phases(records)} == expected


def test_a_failure_that_turns_out_to_be_a_lost_member_is_recorded_as_that() -> None:
    changes = trained()
    first = changes.caused(Cause.WORKER_FAILED, 20.5, 20.6)
    assert first[0][2]["cause"] == "WorkerFailed"
    assert changes.caused(Cause.MEMBER_LOST, 20.4, 20.7) == []
    changes.planned(2, Cause.MEMBER_LOST, 20.4, 20.8)
    changes.starting(1, 20.8)
    end = summary(changes.progressed(101, 21.0))
    assert (end["cause"], end["phases"]["detect"]) == ("MemberLost", {"since": 0.2, "seconds": 0.2})
    assert end["steps_lost"] == 0


def test_the_change_of_a_joiner_starts_with_its_plan() -> None:
    changes = Transitions()
    changes.caused(Cause.START, 0.0, 0.0)
    records = changes.planned(7, Cause.MEMBER_JOINED, 30.0, 30.2)
    assert phases(records) == [("plan", 0.2, 0.2)]


def test_a_dismissed_cause_is_recorded_as_a_false_alarm() -> None:
    changes = trained()
    changes.caused(Cause.MEMBER_SILENT, 20.0, 21.0)
    assert summary(changes.dismissed(22.0))["end"] == "false-alarm"
    assert changes.dismissed(23.0) == []
    changes.caused(Cause.WORKER_FAILED, 30.0, 30.0)
    assert changes.dismissed(31.0) == [], "a failure cannot be dismissed"


def test_phases_that_a_script_does_not_report_stay_unknown() -> None:
    changes = Transitions()
    changes.caused(Cause.START, 0.0, 0.0)
    changes.planned(1, Cause.START, None, 1.0)
    changes.starting(4, 1.0)
    changes.started(1.1)
    end = summary(changes.closed(60.0))
    assert [name for name, known in end["phases"].items() if known] == ["plan", "fork"]
    assert end["end"] == "over"


def test_a_change_before_the_first_step_supersedes_the_previous_one() -> None:
    changes = trained()
    changes.caused(Cause.WORKER_FAILED, 20.0, 20.0)
    changes.planned(2, Cause.WORKER_FAILED, 20.0, 20.1)
    records = changes.planned(3, Cause.MEMBER_LOST, None, 20.2)
    assert summary(records)["end"] == "superseded"
    assert summary(records)["round"] == 2
    assert ("plan", 0.0, 0.0) in phases(records)


def test_late_reports_of_old_worker_processes_are_no_first_step() -> None:
    changes = trained()
    changes.caused(Cause.WORKER_FAILED, 20.0, 20.0)
    assert changes.progressed(101, 20.1) == []
    assert changes.reported("first-step", 0, 20.1) == []


def test_a_change_of_unknown_cause_starts_when_it_is_seen() -> None:
    changes = trained()
    records = changes.planned(2, Cause.RESIZED, None, 50.0)
    changes.starting(1, 50.0)
    end = summary(records + changes.progressed(101, 51.0))
    assert (end["caused_at"], end["phases"]["detect"], end["phases"]["first-step"]["since"]) == (None, None, 1.0)


def test_every_plan_reason_has_a_cause_and_silence_has_its_own() -> None:
    assert cause_of(PlanReason.MEMBER_LOST, silent=True) is Cause.MEMBER_SILENT
    assert cause_of(PlanReason.MEMBER_LOST, silent=False) is Cause.MEMBER_LOST
    assert cause_of(PlanReason.WORKER_FAILED, silent=True) is Cause.WORKER_FAILED
    assert {reason.value for reason in PlanReason} <= {cause.value for cause in Cause}
