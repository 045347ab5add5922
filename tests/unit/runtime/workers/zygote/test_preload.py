"""Which modules a zygote imports, and when it learns of them."""

from __future__ import annotations

import pathlib
import sys

import pytest
from elasticjob_runtime.workers.zygote.learning import LONGEST_PAUSE, Learning
from elasticjob_runtime.workers.zygote.preload import Modules, Verdicts, by_package, is_worth_trying, matches
from elasticjob_runtime.workers.zygote.trial_imports import open_device, to_try


def test_what_the_user_named_is_imported_first_and_not_learned_again() -> None:
    modules = Modules(base=["torch"], asked=["mine"])
    assert modules.named() == ["torch", "mine"]
    assert modules.learn(["torch", "pandas", "mine", "json.decoder", "pandas.core"])
    assert modules.to_try() == ["pandas", "pandas.core"]
    assert not modules.learn(["torch", "pandas", "mine", "pandas.core"]), "nothing new"


def test_a_named_module_that_is_unfit_is_left_out_with_its_submodules() -> None:
    modules = Modules(base=["torch"], asked=["mine", "mine.more", "mines"])
    assert modules.can_do_without("mine")
    assert not modules.can_do_without("torch")
    modules.leave_out("mine")
    assert modules.named() == ["torch", "mines"]
    assert not modules.can_do_without("mine"), "not twice"


def test_a_zygote_that_is_new_tries_everything_again() -> None:
    modules = Modules(base=["torch"])
    modules.learn(["pandas"])
    modules.tried.update(["pandas"])
    modules.learn(["numpy"])
    assert modules.to_try() == ["numpy"]
    modules.forget_trials()
    assert modules.to_try() == ["pandas", "numpy"]


def test_a_module_that_only_asks_for_what_is_known_beforehand_is_imported_late() -> None:
    verdicts = Verdicts()
    verdicts.refuse("lightning", "importing it reads RANK", ["LOCAL_RANK", "RANK"])
    verdicts.refuse("counts", "importing it reads TORCHELASTIC_RESTART_COUNT", ["RANK", "TORCHELASTIC_RESTART_COUNT"])
    verdicts.refuse("grpc", "importing it starts 2 threads")
    assert list(verdicts.late) == ["lightning"]
    assert sorted(verdicts.refused) == ["counts", "grpc"]
    assert verdicts.rules_on("grpc.aio")
    assert verdicts.rules_on("lightning.pytorch"), "and it is imported late too"
    assert list(verdicts.late) == ["lightning", "lightning.pytorch"]
    assert not verdicts.rules_on("grpcio")


def test_verdicts_survive_the_way_between_processes() -> None:
    verdicts = Verdicts(fit=["a"], late={"b": ["RANK"]}, refused={"c": "it starts a thread"})
    assert Verdicts.of(verdicts.to_message()) == verdicts
    other = Verdicts(fit=["a", "d"])
    other.add(verdicts)
    assert (other.fit, other.late, other.refused) == (["a", "d"], verdicts.late, verdicts.refused)


def test_names_from_outside_may_be_anything() -> None:
    names = [
        "pandas.core",
        "_x",
        "json.decoder",
        "__main__",
        "",
        ".",
        "a.",
        "a b",
        "../a",
        "a" * 300,
        "elasticjob_runtime.agent",
    ]
    assert [name for name in names if is_worth_trying(name)] == ["pandas.core", "_x"]


def test_packages_are_tried_one_by_one_in_their_order() -> None:
    assert by_package(["a", "b.c", "a.d", "b"]) == [["a", "a.d"], ["b.c", "b"]]


def test_a_worker_may_be_used_where_every_answer_is_the_same() -> None:
    assert matches({}, {"RANK": "1"})
    assert matches({"LOCAL_RANK": "0", "SLURM_PROCID": None}, {"LOCAL_RANK": "0", "RANK": "7"})
    assert not matches({"RANK": "1"}, {"RANK": "2"})
    assert not matches({"SLURM_PROCID": None}, {"SLURM_PROCID": "0"})


def test_imports_are_learned_within_seconds_and_less_and_less_often() -> None:
    modules = Modules(base=["torch"])
    learning = Learning(modules, on=True, quiet=2.0)
    for name, at in (("json", 10.0), ("a", 10.0), ("b", 11.0)):
        learning.imported(name, at)
    assert learning.due == 13.0, "the standard library does not count"
    for second in range(12, 30):
        learning.imported(f"c{second}", float(second))
    assert learning.due == 16.0, "a script that never stops importing"
    assert learning.take(15.0) == []
    assert learning.take(16.0)[:2] == ["a", "b"]
    learning.imported("late", 17.0)
    learning.done(20.0, anew=False)
    assert learning.due == 22.0, "two seconds after the last time"
    assert learning.take(22.0) == ["late"]
    learning.done(23.0, anew=False)
    learning.imported("later", 23.5)
    assert learning.due == 27.0, "then four"
    now = 27.0
    for number in range(20):
        learning.take(now)
        learning.done(now, anew=False)
        learning.imported(f"again{number}", now)
        assert learning.due is not None
        assert learning.due - now <= LONGEST_PAUSE
        now = learning.due


def test_what_others_have_found_out_is_tried_at_once() -> None:
    modules = Modules(base=["torch"])
    learning = Learning(modules, on=True, quiet=2.0)
    learning.told(Verdicts(fit=["a"], late={"b": ["RANK"]}))
    assert learning.take(0.0) == ["a", "b"]
    assert modules.verdicts.rules_on("b"), "not tried: imported late"


def test_nothing_is_learned_where_the_user_named_all_modules() -> None:
    modules = Modules(base=["torch"], asked=["mine"])
    learning = Learning(modules, on=False)
    learning.imported("a", 0.0)
    learning.told(Verdicts(fit=["b"]))
    assert learning.due is None


def test_only_what_is_installed_and_not_here_yet_is_tried(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lightning asks for sixty packages, most of which came with others or are not there; each trial is a fork."""
    package = tmp_path / "site-packages" / "only_here"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "a_namespace" / "part").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(package.parent))
    assert to_try(["only_here", "only_here.more"]) == ["only_here", "only_here.more"]
    assert to_try(["a_namespace.part"]) == ["a_namespace.part"]
    assert "only_here" not in sys.modules
    assert to_try(["pytest"]) == [], "imported already"
    assert to_try(["torch_xla_is_not_here", "torch_xla_is_not_here.core"]) == []


def test_an_open_gpu_driver_is_seen() -> None:
    assert open_device(["pipe:[1]", "/dev/nvidiactl", "/dev/nvidia0"]) == "", "NVML"
    assert open_device(["/dev/nvidia0", "/dev/nvidia-uvm"]) == "/dev/nvidia-uvm"
    assert open_device(["/dev/kfd"]) == "/dev/kfd"
