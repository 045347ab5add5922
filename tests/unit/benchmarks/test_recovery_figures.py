"""The figures of `make bench-recovery`, and their pages."""

from __future__ import annotations

from benchmarks.recovery import report
from benchmarks.recovery.__main__ import rendered, saved
from benchmarks.recovery.report import Measured, Row, Sample
from benchmarks.recovery.systems import ALL, SYSTEMS, Torchft
from hack.images.recipe import ROOT


def measured(*samples: Sample) -> Measured:
    return Measured({"cores": 2, "cpu": "a CPU", "torch": "2.15"}, "2026-01-02", list(samples))


def of(system: str, row: Row, *values: float | None, lost: int = 0) -> list[Sample]:
    return [
        Sample(row=row, system=system, value=value, steps_lost=lost, samples_lost=0, load=1.5, busy=0.02)
        for value in values
    ]


def test_what_was_measured_less_than_five_times_is_not_shown() -> None:
    few = of("torchrun", Row.KILL, 8.0, 9.0, 9.0, 9.0)
    ours = of("level-2", Row.KILL, 0.04, 0.05, 0.03, 0.04, 0.04)
    found = measured(*few, *ours, *of("level-2", Row.JOIN, 0.01))
    assert found.median(Row.KILL, "torchrun") == "not measured"
    assert found.rows(list(Row), list(SYSTEMS)) == [Row.KILL]
    assert "8.00" not in report.page(found)
    assert Row.JOIN.value not in report.page(found)


def test_a_missed_goal_is_told_with_the_headline() -> None:
    found = measured(*of("level-2", Row.KILL, 0.07, 0.08, 0.09, 0.07, 0.07), *of("level-2", Row.OVERHEAD, *[1.038] * 5))
    part = report.pages(found)["README.md"]
    assert "next step 70 ms, goal 50 ms" in part
    assert "with a session / without 1.038, goal 1.010" in part


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
