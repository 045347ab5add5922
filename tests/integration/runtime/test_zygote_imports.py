"""What the zygote imports ahead of the workers, and what it leaves out."""

from __future__ import annotations

import os

import pytest
from elasticjob_runtime.workers.zygote.preload import ImportVerdicts

from tests.integration.runtime.launcher_harness import MODULES, Bench


def test_one_module_that_cannot_be_forked_makes_all_imports_slow_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is found and left out, with whoever imports it; the rest is warm from the second start on."""
    caplog.set_level("INFO")
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    first = bench.worker()
    assert (first["warm"], first["forked"]) == ([], True)
    bench.learns()
    second = bench.worker()
    assert second["forked"]
    assert second["warm"] == ["plain", "package", "package.rest", "knows_its_rank", "last"]
    told = "\n".join(caplog.messages)
    for name, why in [
        ("package.threads", "starts 1 thread"),
        ("drags", "starts 1 thread"),
        ("touches_gpu", "initialises CUDA"),
        ("crashes", "ends the process"),
        ("starts_a_process", "starts 1 process"),
        ("connects", "opens 2 network connections"),
        ("locks", "makes a semaphore"),
    ]:
        assert f"not preloading {name}, every worker imports it itself: importing it {why}" in told
    assert not launcher.problem


def test_a_module_that_asks_for_its_rank_is_preloaded_for_the_rank_it_will_have(bench: Bench) -> None:
    """lightning and torchmetrics do. A survivor keeps its rank; where the plan says otherwise, the script imports it
    itself."""
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    bench.worker(RANK="3")
    bench.learns()
    same = bench.worker(RANK="3")
    assert ("knows_its_rank" in same["warm"], same["rank"], same["forked"]) == (True, 3, True)
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    other = bench.worker(RANK="2")
    assert ("knows_its_rank" in other["warm"], other["rank"], other["forked"]) == (False, 2, True)
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    launcher.expect({0: {"RANK": "5"}})
    expected = bench.worker(RANK="5")
    assert ("knows_its_rank" in expected["warm"], expected["rank"], expected["forked"]) == (True, 5, True)


def test_all_that_ask_for_their_rank_are_found_with_one_trial(bench: Bench) -> None:
    """lightning brings torchmetrics along, and each takes seconds: a trial of either would put what follows off by as
    much."""
    files = {
        "outer/__init__.py": "import inner, neutral, os\nRANK = os.environ.get('RANK')\n",
        "inner/more.py": "",
        "inner/__init__.py": "import os, inner.more\nRANK = "
        "os.environ.get('LOCAL_RANK')\nopen(os.environ['IMPORTED'], 'a').write('x')\n",
        "neutral/__init__.py": "",
    }
    for name, text in files.items():
        (bench.packages / name).parent.mkdir(exist_ok=True)
        (bench.packages / name).write_text(text)
    (bench.folder / "script.py").write_text(
        "import json, sys\nprint(json.dumps([name for name in ('outer', 'inner', 'neutral') if name in "
        "sys.modules]))\nimport outer\n"
    )
    imported = bench.folder / "imported"
    bench.environment["IMPORTED"] = str(imported)
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    assert bench.worker(RANK="3", LOCAL_RANK="0") == []
    bench.learns()
    assert launcher.imports.fork_safe == ["neutral"]
    assert launcher.imports.per_rank == {"outer": ["LOCAL_RANK", "RANK"], "inner": ["LOCAL_RANK"]}
    assert imported.read_text() == "xxx", "by the first worker, in one trial, by the worker that is parked"
    assert bench.worker(RANK="3", LOCAL_RANK="0") == ["outer", "inner", "neutral"]


def test_workers_have_the_agents_priority_after_learning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning runs at a lower one, which a process without privileges could not raise again; and no program `nice`
    need be there."""
    bench.environment["PATH"] = str(bench.folder)
    monkeypatch.setenv("PATH", str(bench.folder))
    (bench.packages / "starts_a_process.py").write_text("class PROCESS:\n kill = staticmethod(lambda: None)\n")
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    bench.worker()
    bench.learns()
    second = bench.worker()
    assert "plain" in second["warm"]
    assert second["nice"] == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_newcomer_is_ready_when_it_has_imported_what_the_others_scripts_import(bench: Bench) -> None:
    launcher = bench.launcher(preload=["auto"], waits=True)
    bench.run_until(lambda: launcher.stores.listening)
    assert not launcher.ready, "it does not know yet whether there is something to import"
    known = ImportVerdicts(fork_safe=["plain", "last", "not_installed_here"], per_rank={"knows_its_rank": ["RANK"]})
    launcher.expect({0: {"RANK": "2"}})
    launcher.add_imports(known, wait=True)
    assert not launcher.ready
    bench.run_until(lambda: launcher.ready)
    assert bench.worker(RANK="2")["warm"] == ["plain", "knows_its_rank", "last"]


def test_the_first_members_of_a_job_do_not_wait_for_what_an_earlier_run_learned(bench: Bench) -> None:
    launcher = bench.launcher(preload=["auto"], waits=True)
    bench.run_until(lambda: launcher.stores.listening)
    launcher.add_imports(ImportVerdicts(fork_safe=["plain"]), wait=False)
    assert launcher.ready
    bench.learns()
    assert "plain" in bench.worker()["warm"]


def test_a_module_that_the_user_named_and_that_cannot_be_forked_is_left_out(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = bench.launcher(preload=["plain", "package.threads", "last"])
    bench.run_until(lambda: launcher.ready)
    said = bench.worker()
    assert (said["warm"], said["forked"]) == (["plain", "last"], True)
    assert [record.levelname for record in caplog.records if "not preloading package.threads" in record.message] == [
        "WARNING"
    ]


def test_workers_are_spawned_where_torch_itself_cannot_be_forked(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (bench.packages / "torch/__init__.py").write_text(MODULES["torch/__init__.py"] + MODULES["package/threads.py"])
    launcher = bench.launcher(preload=["auto"])
    bench.run_until(lambda: launcher.ready)
    assert bench.worker()["forked"] is False
    assert "no zygote, spawning workers: importing it starts 1 thread" in caplog.text
