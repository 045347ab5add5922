"""The figures of the benchmark of continuing in place, from lines that worker processes could have written."""

from __future__ import annotations

import math

import pytest

from benchmarks.in_place import report
from benchmarks.in_place.ledger import Ledger, change, goodput, longest_pause, samples_lost, usual_step
from benchmarks.in_place.report import Row, Sample


def trained(ledger: Ledger, process: str, generation: str, first: int, times: list[float], *, world: int = 2) -> None:
    """One sample per step and process, named for the step and the process's number."""
    for step, time in enumerate(times, first):
        ledger.read(process, f"t {step} {generation} {step}{process[0]}\nc {time} {step} {generation} {world}\n")


def killed() -> Ledger:
    """Two processes take ten steps a second until 1.0; `b` is killed at 1.05, and replaced at 2.0 by `c`."""
    ledger = Ledger()
    for process in ("a", "b"):
        trained(ledger, process, "1", 1, [n / 10 for n in range(1, 11)])
    ledger.read("b", "t 11 1 11b\n")
    trained(ledger, "a", "2", 11, [1.25 + n / 10 for n in range(8)], world=1)
    ledger.read("a", "t 11 2 11a,11b\n")
    for process in ("a", "c"):
        trained(ledger, process, "3", 19, [2.1 + n / 10 for n in range(5)])
    return ledger


def test_a_kill_costs_the_time_to_the_survivors_next_step() -> None:
    cost = change(killed().commits, 1.05, victims=["b"])
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
    cost = change(ledger.commits, 0.31, victims=["b"])
    assert cost is not None
    assert cost.steps_lost == 0


def test_no_sample_is_lost_if_others_take_the_share() -> None:
    assert samples_lost(killed()) == 0


def test_samples_of_a_step_that_was_given_up_are_lost() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1, 0.2])
    trained(ledger, "b", "1", 1, [0.1, 0.2])
    ledger.read("a", "t 3 - 3a\n")
    ledger.read("b", "t 3 - 3b,4b\n")
    assert samples_lost(ledger) == 0, "both may still commit it"
    trained(ledger, "a", "2", 3, [0.5])
    ledger.read("a", "t 4 - 5a\n")
    assert samples_lost(ledger) == 2, "b's share; a took the same sample again"


def test_a_commit_of_another_process_counts_for_all_of_its_generation() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1])
    ledger.read("b", "t 1 1 7\n")
    trained(ledger, "a", "2", 2, [0.4])
    assert samples_lost(ledger) == 0


def test_the_longest_pause_is_between_two_steps_of_any_process() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.1, 0.2, 0.9])
    trained(ledger, "b", "1", 1, [0.12, 0.6, 0.9])
    assert longest_pause(ledger.commits, 0.1, 1.0) == pytest.approx(0.4)
    assert longest_pause(ledger.commits, 0.1, 7.0) == math.inf


def test_goodput_is_the_share_of_the_steps_without_faults() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [n / 10 for n in range(51)])
    trained(ledger, "b", "2", 50, [5.5 + n / 10 for n in range(46)])
    assert usual_step(ledger.commits) == pytest.approx(0.1)
    assert goodput(ledger.commits, 0.0, 10.0) == pytest.approx(94 / 100, abs=0.001)


def samples() -> list[Sample]:
    return [
        *(Sample(row=Row.KILL, system="torchrun-tuned", value=value, steps_lost=20, load=1) for value in (8.0, 9.0)),
        *(Sample(row=Row.KILL, system="level 2", value=v, steps_lost=0, samples_lost=0) for v in (0.04, 0.05, 0.03)),
        Sample(row=Row.KILL, system="level 2", load=2),
        Sample(row=Row.STATE, system="level 2", value=1.25, detail=0.9),
        Sample(row=Row.GOODPUT, system="level 2", value=0.995),
    ]


def test_the_table_has_medians_losses_failures_and_ratios() -> None:
    assert report.grid(samples()) == (
        ["", "torchrun-tuned", "level 2", "goal"],
        [
            [
                Row.KILL.value,
                "8.50 s (8.000-9.000); lost steps: 20, at most 20",
                "40 ms (0.030-0.050); 1 of 4 failed; 212x",
                "<= 50 ms",
            ],
            [Row.STATE.value, "", "1.25, 0.900 s", "<= 1.30"],
            [Row.GOODPUT.value, "", "99.5%", ">= 99.0%"],
        ],
    )


def test_the_page_says_how_often_each_was_measured() -> None:
    page = report.markdown(samples(), {"cores": 2, "torch": "2.15"}, "2026-01-02")
    assert "Measured on 2026-01-02: 2 cores, torch 2.15." in page
    assert "torchrun-tuned 2 of each change, level 2 4 of each change" in page
    assert "| torchrun-tuned |" in page


def test_new_samples_replace_those_of_the_same_row_and_system() -> None:
    new = [Sample(row=Row.KILL, system="level 2", value=0.02)]
    found = report.merged(samples(), new)
    assert [one.value for one in found if (one.system, one.row) == ("level 2", Row.KILL)] == [0.02]
    assert len(found) == len(samples()) - 3
    assert report.from_json(report.to_json(found)) == found


def test_training_that_never_continues_is_a_result_and_no_failure() -> None:
    never = Sample(row=Row.SILENT, system="torchrun-tuned", value=report.NEVER)
    soon = Sample(row=Row.SILENT, system="level 2", value=0.9)
    _, (row,) = report.grid([never, never, soon])
    assert row == [Row.SILENT.value, "never", "900 ms", "<= 1.00 s"]
    assert report.from_json(report.to_json([never])) == [never]
