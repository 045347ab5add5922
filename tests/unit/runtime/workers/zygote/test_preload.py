"""Which modules a zygote imports, and when it learns about them."""

from __future__ import annotations

import pathlib
import sys

import pytest
from elasticjob_runtime.workers.zygote.fork_safety import open_gpu_driver
from elasticjob_runtime.workers.zygote.preload import (
    MAX_PAUSE_SECONDS,
    ImportResults,
    LearningSchedule,
    PreloadModules,
    is_worth_trying,
    matches,
)
from elasticjob_runtime.workers.zygote.trial_imports import worth_a_trial


def test_requested_modules_are_imported_first_and_not_learned_again() -> None:
    modules = PreloadModules(base=["torch"], requested=["mine"])
    assert modules.initial() == ["torch", "mine"]
    assert modules.learn(["torch", "pandas", "mine", "json.decoder", "pandas.core"])
    assert modules.untried() == ["pandas", "pandas.core"]
    assert not modules.learn(["torch", "pandas", "mine", "pandas.core"]), "nothing new"


def test_a_requested_module_that_is_not_fork_safe_is_left_out_with_its_submodules() -> None:
    modules = PreloadModules(base=["torch"], requested=["mine", "mine.more", "mines"])
    assert modules.can_exclude("mine")
    assert not modules.can_exclude("torch")
    modules.exclude("mine")
    assert modules.initial() == ["torch", "mines"]
    assert not modules.can_exclude("mine"), "not twice"


def test_a_new_zygote_repeats_all_trial_imports() -> None:
    modules = PreloadModules(base=["torch"])
    modules.learn(["pandas"])
    modules.tried.update(["pandas"])
    modules.learn(["numpy"])
    assert modules.untried() == ["numpy"]
    modules.forget_trials()
    assert modules.untried() == ["pandas", "numpy"]


def test_a_module_that_reads_only_rank_variables_is_imported_late() -> None:
    results = ImportResults()
    results.reject("lightning", "importing it reads RANK", ["LOCAL_RANK", "RANK"])
    results.reject("counts", "importing it reads TORCHELASTIC_RESTART_COUNT", ["RANK", "TORCHELASTIC_RESTART_COUNT"])
    results.reject("grpc", "importing it starts 2 threads")
    assert list(results.per_rank) == ["lightning"]
    assert sorted(results.excluded) == ["counts", "grpc"]
    assert results.covers("grpc.aio")
    assert results.covers("lightning.pytorch"), "and it is imported late too"
    assert list(results.per_rank) == ["lightning", "lightning.pytorch"]
    assert not results.covers("grpcio")


def test_results_survive_a_round_trip_between_processes() -> None:
    results = ImportResults(fork_safe=["a"], per_rank={"b": ["RANK"]}, excluded={"c": "it starts a thread"})
    assert ImportResults.from_message(results.to_message()) == results
    other = ImportResults(fork_safe=["a", "d"])
    other.add(results)
    assert (other.fork_safe, other.per_rank, other.excluded) == (["a", "d"], results.per_rank, results.excluded)


@pytest.mark.parametrize(
    "name", ["json.decoder", "__main__", "", ".", "a.", "a b", "../a", "a" * 300, "elasticjob_runtime.agent"]
)
def test_only_valid_names_of_modules_of_others_are_tried(name: str) -> None:
    assert [item for item in ("pandas.core", name, "_x") if is_worth_trying(item)] == ["pandas.core", "_x"]


@pytest.mark.parametrize(
    ("read", "environment", "fits"),
    [
        ({}, {"RANK": "1"}, True),
        ({"LOCAL_RANK": "0", "SLURM_PROCID": None}, {"LOCAL_RANK": "0", "RANK": "7"}, True),
        ({"RANK": "1"}, {"RANK": "2"}, False),
        ({"SLURM_PROCID": None}, {"SLURM_PROCID": "0"}, False),
    ],
)
def test_a_preforked_process_fits_if_every_variable_it_read_is_the_same(
    read: dict[str, str | None], environment: dict[str, str], fits: bool
) -> None:
    assert matches(read, environment) is fits


def test_imports_are_learned_within_seconds_and_ever_less_often() -> None:
    modules = PreloadModules(base=["torch"])
    schedule = LearningSchedule(modules, enabled=True, quiet=2.0)
    for name, at in (("json", 10.0), ("a", 10.0), ("b", 11.0)):
        schedule.imported(name, at)
    assert schedule.due == 13.0, "the standard library does not count"
    for second in range(12, 30):
        schedule.imported(f"c{second}", float(second))
    assert schedule.due == 16.0, "a script that keeps importing"
    assert schedule.take_due(15.0) == []
    assert schedule.take_due(16.0)[:2] == ["a", "b"]
    schedule.imported("late", 17.0)
    schedule.finished(20.0, fresh_zygote=False)
    assert schedule.due == 22.0, "two seconds after the last time"
    assert schedule.take_due(22.0) == ["late"]
    schedule.finished(23.0, fresh_zygote=False)
    schedule.imported("later", 23.5)
    assert schedule.due == 27.0, "then four"
    now = 27.0
    for number in range(20):
        schedule.take_due(now)
        schedule.finished(now, fresh_zygote=False)
        schedule.imported(f"again{number}", now)
        assert schedule.due is not None
        assert schedule.due - now <= MAX_PAUSE_SECONDS
        now = schedule.due


def test_results_of_other_agents_are_tried_at_once() -> None:
    modules = PreloadModules(base=["torch"])
    schedule = LearningSchedule(modules, enabled=True, quiet=2.0)
    schedule.add_known(ImportResults(fork_safe=["a"], per_rank={"b": ["RANK"]}))
    assert schedule.take_due(0.0) == ["a", "b"]
    assert modules.results.covers("b"), "not tried: imported late"


def test_nothing_is_learned_if_the_user_named_all_modules() -> None:
    modules = PreloadModules(base=["torch"], requested=["mine"])
    schedule = LearningSchedule(modules, enabled=False)
    schedule.imported("a", 0.0)
    schedule.add_known(ImportResults(fork_safe=["b"]))
    assert schedule.due is None


def test_only_modules_installed_and_not_yet_imported_are_tried(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lightning checks for sixty packages, most of them imported already or not installed; each trial is a fork."""
    package = tmp_path / "site-packages" / "only_here"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "a_namespace" / "part").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(package.parent))
    assert worth_a_trial(["only_here", "only_here.more"]) == ["only_here", "only_here.more"]
    assert worth_a_trial(["a_namespace.part"]) == ["a_namespace.part"]
    assert "only_here" not in sys.modules
    assert worth_a_trial(["pytest"]) == [], "imported already"
    assert worth_a_trial(["torch_xla_is_not_here", "torch_xla_is_not_here.core"]) == []


def test_an_open_gpu_driver_is_detected() -> None:
    assert open_gpu_driver(["pipe:[1]", "/dev/nvidiactl", "/dev/nvidia0"]) is None, "NVML"
    assert open_gpu_driver(["/dev/nvidia0", "/dev/nvidia-uvm"]) == "/dev/nvidia-uvm"
    assert open_gpu_driver(["/dev/kfd"]) == "/dev/kfd"
