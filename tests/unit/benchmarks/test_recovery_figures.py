"""The figures of `make bench-recovery`, from lines that worker processes could have written, and their pages."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.recovery import report
from benchmarks.recovery.__main__ import ROOT, rendered
from benchmarks.recovery.ledger import Ledger, change, longest_pause, samples_lost, usual_step
from benchmarks.recovery.report import Measured, Row, Sample
from benchmarks.recovery.systems import SYSTEMS, Torchft


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


def test_the_usual_step_is_the_median() -> None:
    ledger = Ledger()
    trained(ledger, "a", "1", 1, [0.0, 0.1, 0.2, 0.3, 5.0])
    assert usual_step(ledger.commits) == pytest.approx(0.1)


def measured(*samples: Sample) -> Measured:
    return Measured({"cores": 2, "cpu": "a CPU", "torch": "2.15"}, "2026-01-02", list(samples))


def of(system: str, row: Row, *values: float | None, lost: int = 0) -> list[Sample]:
    return [
        Sample(row=row, system=system, value=value, steps_lost=lost, samples_lost=0, load=1.5, busy=0.02)
        for value in values
    ]


def test_a_figure_is_the_plain_median_of_all_runs() -> None:
    """Not the higher one of the two in the middle."""
    found = measured(*of("torchrun", Row.RESET, 8.0, 9.5, 8.5, 9.0, 7.0, 10.0))
    assert found.median(Row.RESET, "torchrun") == "8.75 s"
    assert found.details(Row.RESET, "torchrun") == "8.75 s (7.000-10.000)"


def test_what_was_measured_less_than_five_times_is_not_shown() -> None:
    few = of("torchrun", Row.KILL, 8.0, 9.0, 9.0, 9.0)
    ours = of("level-2", Row.KILL, 0.04, 0.05, 0.03, 0.04, 0.04)
    found = measured(*few, *ours, *of("level-2", Row.JOIN, 0.01))
    assert found.median(Row.KILL, "torchrun") == "not measured"
    assert found.rows(list(Row), list(SYSTEMS)) == [Row.KILL]
    assert "8.00" not in report.page(found)
    assert Row.JOIN.value not in report.page(found)


def test_a_failed_run_is_no_measurement() -> None:
    found = measured(*of("level-2", Row.KILL, 0.04, 0.05, 0.03, 0.04, None))
    assert found.values(Row.KILL, "level-2") == []
    more = measured(*found.samples, *of("level-2", Row.KILL, 0.04, lost=2))
    assert more.details(Row.KILL, "level-2") == "40 ms (0.030-0.050); lost steps: 0, at most 2; 1 of 6 failed"


def test_training_that_never_continues_is_a_result_and_no_failure() -> None:
    found = measured(*of("torchrun", Row.SILENT, *[report.NEVER] * 5), *of("level-1", Row.SILENT, *[2.5] * 5))
    assert found.median(Row.SILENT, "torchrun") == "not within 90 s"
    assert report.from_json(json.loads(json.dumps(report.to_json(found)))) == found


def test_a_missed_goal_is_told_with_the_headline() -> None:
    found = measured(*of("level-2", Row.KILL, 0.07, 0.08, 0.09, 0.07, 0.07), *of("level-2", Row.OVERHEAD, *[1.038] * 5))
    part = report.pages(found)["README.md"]
    assert "next step 70 ms, goal 50 ms" in part
    assert "with a session / without 1.038, goal 1.010" in part


def test_the_docs_show_the_figures_that_are_saved() -> None:
    saved = report.from_json(json.loads((ROOT / "docs/bench/recovery.json").read_text()))
    for page, text in rendered(saved, ROOT).items():
        assert (ROOT / page).read_text(encoding="utf-8") == text, (
            f"{page}: run `.venv/bin/python -m benchmarks.recovery --render`"
        )


def test_every_launcher_runs_the_same_job() -> None:
    for system in SYSTEMS.values():
        assert system.script.exists()
        if not isinstance(system, Torchft):
            command = system.command("127.0.0.1:1", "id", 2, 4)
            assert command[command.index("--nnodes") + 1] == "2:4"
            assert command[command.index("--rdzv-backend") + 1] == ("etcd-v3" if system.on_etcd else "c10d")
