"""The benchmark's figures, from lines that worker processes could have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.etcd import parse_metrics
from benchmarks.recovery import report, saved
from benchmarks.recovery.__main__ import is_clear
from benchmarks.recovery.measure import (
    Recovery,
    Worker,
    goodput,
    is_steady,
    newest_world,
    parse_log,
    recovery,
    usual_step,
)
from benchmarks.recovery.report import Result
from benchmarks.recovery.systems import SYSTEMS


def worker(rank: int, world: int, began: float, resumed: int, times: list[float]) -> Worker:
    steps = tuple((time, resumed + number) for number, time in enumerate(times, 1))
    return Worker(member=f"agent-{rank}", pid=1, rank=rank, world=world, began=began, resumed=resumed, steps=steps)


def crash() -> list[Worker]:
    """Two workers do ten steps a second until 2.0 s; then both are replaced, from the checkpoint of step 18 of 20."""
    before, after = [n / 10 for n in range(1, 21)], [2.5 + n / 10 for n in range(1, 21)]
    return [
        *(worker(0, 2, 0.0, 0, before), worker(1, 2, 0.0, 0, before)),
        *(worker(0, 2, 2.2, 18, after), worker(1, 2, 2.2, 18, after)),
    ]


def test_a_crash_costs_the_time_to_the_next_first_step_and_the_steps_repeated() -> None:
    cost = recovery(crash(), event=2.05, world=2)
    assert cost.first_step == pytest.approx(0.55)
    assert cost.stall == pytest.approx(0.6)
    assert cost.steps_lost == 2
    assert cost.restarted == pytest.approx(0.15)


def test_worker_processes_from_before_the_event_are_no_recovery() -> None:
    assert recovery(crash()[:2], event=1.0, world=2) == Recovery(first_step=None, stall=None, steps_lost=None)
    assert recovery(crash(), event=2.05, world=3).first_step is None


def test_a_join_stalls_the_job_only_while_no_step_is_done() -> None:
    old = [n / 10 for n in range(1, 60)]
    joined = [6.4 + n / 10 for n in range(1, 20)]
    cost = recovery(
        [worker(0, 1, 0.0, 0, old), worker(0, 2, 6.1, 59, joined), worker(1, 2, 6.1, 59, joined)], event=1.0, world=2
    )
    assert cost.first_step == pytest.approx(5.5)
    assert cost.stall == pytest.approx(0.6)
    assert cost.steps_lost == 0


def test_two_restarts_lose_steps_twice() -> None:
    workers = [
        worker(0, 2, 0.0, 0, [0.1, 0.2, 0.3, 0.4]),
        worker(0, 3, 1.0, 3, [1.1, 1.2]),
        worker(0, 2, 2.0, 4, [2.1]),
    ]
    assert recovery(workers, event=0.5, world=2).steps_lost == 1 + 1


def test_a_group_without_a_step_loses_nothing_more() -> None:
    workers = [worker(0, 2, 0.0, 0, [0.1, 0.2, 0.3]), worker(0, 3, 1.0, 2, []), worker(0, 2, 2.0, 2, [2.1])]
    assert recovery(workers, event=0.5, world=2).steps_lost == 1


def test_a_group_is_steady_once_every_rank_has_done_some_steps() -> None:
    assert is_steady(crash(), 2)
    assert is_steady(crash(), 2, since=2.1)
    assert not is_steady(crash()[:3], 2, since=2.1)
    assert not is_steady(crash(), 2, since=2.3)
    assert [one.began for one in newest_world(crash(), 2, 0.0)] == [2.2, 2.2]


def test_an_unfinished_log_is_read_up_to_its_last_whole_line() -> None:
    head = {"member": "a", "pid": 7, "rank": 1, "world": 4, "began": 1.5, "resumed": 3}
    text = json.dumps(head) + "\n2.5 4\n2.6"
    assert parse_log(text) == Worker(member="a", pid=7, rank=1, world=4, began=1.5, resumed=3, steps=((2.5, 4),))
    assert parse_log(text[:10]) is None


def test_goodput_counts_a_step_once() -> None:
    assert usual_step(crash()) == pytest.approx(0.1)
    assert goodput(crash(), 0.1, 4.5) == pytest.approx((38 - 1) / 44, abs=0.01)


def results() -> list[Result]:
    def took(first: float | None, lost: int = 0) -> Recovery:
        return Recovery(
            first_step=first, stall=None if first is None else first / 2, steps_lost=None if first is None else lost
        )

    ours = [
        Result(system="elasticrun", change="worker crash", run=n, recovery=took(t, 1))
        for n, t in enumerate((0.5, 0.4, 0.6), 1)
    ]
    theirs = [Result(system="torchrun-tuned", change="worker crash", run=n, recovery=took(8.0, 1)) for n in (1, 2, 3)]
    never = [Result(system="torchrun-tuned", change="node silent", run=n, recovery=took(None)) for n in (1, 2)]
    joins = [Result(system="elasticrun", change="node joins", run=1, recovery=took(9.0))]
    share = [Result(system="elasticrun", change="goodput", run=1, goodput=0.99)]
    broken = [Result(system="elasticrun", change="node silent", run=1, error="no training")]
    return [*ours, *theirs, *never, *joins, *share, *broken]


def test_the_table_has_medians_and_ratios() -> None:
    header, rows = report.grid(results())
    assert header == ["event to first step", "torchrun-tuned", "elasticrun"]
    assert rows == [
        ["worker crash", "8.00 s (8.00-8.00), 1 lost", "0.50 s (0.40-0.60), 1 lost  16.0x"],
        ["node silent", "never (90 s)", "failed"],
        ["node joins: stall", "", "4.50 s, 0 lost"],
        ["goodput", "", "99.0%"],
    ]


def test_an_event_in_less_than_half_of_the_runs_counts_as_never() -> None:
    cost = Recovery(first_step=1.0, stall=1.0, steps_lost=0)
    never = Recovery(first_step=None, stall=None, steps_lost=None)
    of = [Result(system="torchrun", change="crash", run=n, recovery=one) for n, one in enumerate((cost, never, never))]
    assert report.cell(of) == "never (90 s) in 2 of 3"


def test_markdown_and_plot_show_every_change() -> None:
    text = report.markdown(results(), {"cores": 2, "torch": "2.6"})
    assert "| worker crash | 8.00 s (8.00-8.00), 1 lost | 0.50 s (0.40-0.60), 1 lost  16.0x |" in text
    drawn = report.plot(results())
    assert drawn.startswith("<svg")
    assert drawn.count("never") == 1, "values that were not measured are not drawn"
    for words in ("worker crash", "node joins: stall", "never", "0.50 s"):
        assert words in drawn


def test_results_of_several_runs_are_merged(tmp_path: Path) -> None:
    def took(seconds: float, system: str = "elasticrun", run: int = 1) -> Result:
        cost = Recovery(first_step=seconds, stall=seconds, steps_lost=0, restarted=seconds / 2)
        return Result(
            system=system,
            change="worker crash",
            scenario="crash",
            run=run,
            recovery=cost,
            busy=0.02,
            at="2026-01-02T03:04:05+00:00",
        )

    here: dict[str, str | int] = {"cores": 2, "torch": "2.6"}
    assert saved.load(tmp_path) is None
    saved.save(saved.Saved(here, [took(1.0), took(9.0, "torchrun-tuned")]), tmp_path)
    before = saved.load(tmp_path)
    assert before == saved.Saved(here, [took(1.0), took(9.0, "torchrun-tuned")])
    assert before is not None
    assert saved.merge(before.results, [took(2.0)], add=False) == [took(9.0, "torchrun-tuned"), took(2.0)]
    assert saved.merge(before.results, [took(2.0)], add=True) == [
        took(1.0),
        took(9.0, "torchrun-tuned"),
        took(2.0, run=2),
    ]

    saved.check(before, here)
    with pytest.raises(saved.SavedError, match=r"another machine.*torch: 2.6 saved, 2.7 here"):
        saved.check(before, {**here, "torch": "2.7"})

    text = (tmp_path / "recovery.md").read_text()
    assert (
        "Measured on 2026-01-02: 2 cores, torch 2.6. Just before each run, other processes used 2% of the CPU" in text
    )
    assert "1 runs of each" in text
    assert "| worker crash | 4.50 s | 0.50 s |" in text, "the launcher's share"


def test_unreadable_saved_results_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "recovery.json").write_text('{"results": []}')
    with pytest.raises(saved.SavedError, match="--fresh"):
        saved.load(tmp_path)


def test_the_launchers_share_of_a_join_counts_only_while_training_is_paused() -> None:
    """The joiner's own start does not pause the running job."""
    cost = Recovery(first_step=7.0, stall=3.0, steps_lost=0, restarted=5.0)
    of = [Result(system="elasticrun", change=change, run=1, recovery=cost) for change in ("node joins", "node reset")]
    assert report.shares(of) == (
        ["event to the script's first line", "elasticrun"],
        [["node joins: of the stall", "1.00 s"], ["node reset", "5.00 s"]],
    )


def test_a_failed_run_counts_in_all_rows_of_its_scenario() -> None:
    cost = Recovery(first_step=1.0, stall=1.0, steps_lost=0)
    good = [
        Result(system="elasticrun", scenario="crash", change=name, run=1, recovery=cost)
        for name in ("start", "worker crash")
    ]
    bad = Result(system="elasticrun", scenario="crash", change="crash", run=2, error="no training")
    assert report.grid([*good, bad])[1] == [
        ["start", "1.00 s; 1 of 2 failed"],
        ["worker crash", "1.00 s, 0 lost; 1 of 2 failed"],
    ]
    assert report.grid([bad])[1] == [["crash", "failed"]]


def test_two_slow_runs_give_a_clear_result() -> None:
    def took(seconds: float | None, run: int, change: str = "node silent") -> Result:
        return Result(
            system="torchrun",
            change=change,
            run=run,
            recovery=Recovery(first_step=seconds, stall=None, steps_lost=None),
        )

    assert is_clear([took(40.0, 1), took(None, 2)])
    assert not is_clear([took(None, 1)])
    assert not is_clear([took(40.0, 1), took(9.0, 2)])
    assert not is_clear([took(40.0, 1, "start"), took(40.0, 2, "start")]), "the start is not what is measured"


def test_every_launcher_runs_the_same_job() -> None:
    for system in SYSTEMS.values():
        command = system.command("127.0.0.1:1", "id", 2, 4, "script.py")
        assert command[-1] == "script.py"
        assert command[command.index("--nnodes") + 1] == "2:4"
        assert command[command.index("--rdzv-backend") + 1] == ("etcd-v3" if system.on_etcd else "c10d")


def test_etcds_metrics_are_summed_over_labels() -> None:
    text = '# HELP x\netcd_a{t="1"} 2\netcd_a{t="2"} 3\netcd_b 1.5e3\n'
    assert parse_metrics(text) == {"etcd_a": 5.0, "etcd_b": 1500.0}
