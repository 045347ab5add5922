"""The figures of `make bench-recovery`, and their pages."""

from __future__ import annotations

import json

from benchmarks.recovery import report
from benchmarks.recovery.__main__ import ROOT, rendered, saved
from benchmarks.recovery.report import Measured, Row, Sample
from benchmarks.recovery.systems import ALL, SHARDED, SYSTEMS, Torchft


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


def test_replicas_have_a_page_of_their_own_with_the_processes_that_restarted() -> None:
    ours = of("replicas", Row.REPLICA_KILL, *[0.03] * 5)
    theirs = [
        Sample(row=Row.REPLICA_KILL, system="torchrun-dcp", value=9.5, steps_lost=4, restarted=count, busy=0.0)
        for count in (4, 4, 4, 4, 6)
    ]
    found = measured(*of("level-2", Row.KILL, *[0.04] * 5), *ours, *theirs)
    page = report.replicas_page(found.only(SHARDED))
    assert "9.50 s; lost steps: 4, at most 4; restarted processes: 4, at most 6" in page
    assert "| 30 ms | 5 | <= 50 ms: met |" in page
    assert Row.REPLICA_KILL.value not in report.page(found.only(SYSTEMS))


def test_the_docs_show_the_figures_that_are_saved() -> None:
    pages = {page: text for found in saved(ROOT) for page, text in rendered(found, ROOT).items()}
    assert "README.md" in pages
    for page, text in pages.items():
        assert (ROOT / page).read_text(encoding="utf-8") == text, (
            f"{page}: run `.venv/bin/python -m benchmarks.recovery --render`"
        )


def test_every_launcher_runs_the_same_job() -> None:
    for system in ALL.values():
        assert system.script.exists()
        if not isinstance(system, Torchft):
            command = system.command("127.0.0.1:1", "id", 2, 4)
            assert command[command.index("--nnodes") + 1] == "2:4"
            assert command[command.index("--rdzv-backend") + 1] == ("etcd-v3" if system.on_etcd else "c10d")
