"""What the zygote imports ahead of the workers, and what it leaves out."""

from __future__ import annotations

import os

import pytest
from elasticjob_runtime.workers.zygote.preload import ImportResults

from tests.integration.runtime.launcher_harness import MODULES, Harness


def test_modules_that_are_not_fork_safe_are_left_out_and_the_rest_is_preloaded(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """So is every module that imports one; the second worker process finds the rest loaded."""
    caplog.set_level("INFO")
    launcher = harness.ready_launcher(preload=["auto"])
    first = harness.worker()
    assert (first["warm"], first["forked"]) == ([], True)
    harness.wait_until_learned()
    second = harness.worker()
    assert second["forked"]
    assert second["warm"] == ["plain", "package", "package.rest", "knows_its_rank", "last"]
    log = "\n".join(caplog.messages)
    for name, why in [
        ("package.threads", "starts 1 thread"),
        ("drags", "starts 1 thread"),
        ("touches_gpu", "initialises CUDA"),
        ("crashes", "ends the process"),
        ("starts_a_process", "starts 1 process"),
        ("connects", "opens 2 network connections"),
        ("locks", "makes a semaphore"),
    ]:
        assert f"not preloading {name}, every worker imports it itself: importing it {why}" in log
    assert not launcher.problem


def test_a_module_that_reads_its_rank_is_preloaded_for_the_expected_rank(harness: Harness) -> None:
    """lightning and torchmetrics read it. Where a worker process gets another rank, the script imports the module."""
    launcher = harness.ready_launcher(preload=["auto"])
    harness.worker(RANK="3")
    harness.wait_until_learned()
    same = harness.worker(RANK="3")
    assert ("knows_its_rank" in same["warm"], same["rank"], same["forked"]) == (True, 3, True)
    harness.wait_until_preforked()
    other = harness.worker(RANK="2")
    assert ("knows_its_rank" in other["warm"], other["rank"], other["forked"]) == (False, 2, True)
    harness.wait_until_preforked()
    launcher.expect({0: {"RANK": "5"}})
    expected = harness.worker(RANK="5")
    assert ("knows_its_rank" in expected["warm"], expected["rank"], expected["forked"]) == (True, 5, True)


def test_worker_processes_have_the_agents_priority_after_learning(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning runs at a lower one, which an unprivileged process cannot raise again. It does not need the program
    `nice`."""
    harness.environment["PATH"] = str(harness.folder)
    monkeypatch.setenv("PATH", str(harness.folder))
    (harness.packages / "starts_a_process.py").write_text("class PROCESS:\n kill = staticmethod(lambda: None)\n")
    harness.ready_launcher(preload=["auto"])
    harness.worker()
    harness.wait_until_learned()
    second = harness.worker()
    assert "plain" in second["warm"]
    assert second["nice"] == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_joiner_is_ready_once_it_has_preloaded_what_the_other_members_import(harness: Harness) -> None:
    launcher = harness.launcher(preload=["auto"], waits=True)
    harness.run_until(lambda: launcher.stores.listening)
    assert not launcher.ready, "it does not know yet what to import"
    known = ImportResults(fork_safe=["plain", "last", "not_installed_here"], per_rank={"knows_its_rank": ["RANK"]})
    launcher.expect({0: {"RANK": "2"}})
    launcher.add_imports(known, wait=True)
    assert not launcher.ready
    harness.run_until(lambda: launcher.ready)
    assert harness.worker(RANK="2")["warm"] == ["plain", "knows_its_rank", "last"]


def test_the_first_members_do_not_wait_for_the_imports_of_an_earlier_run(harness: Harness) -> None:
    launcher = harness.launcher(preload=["auto"], waits=True)
    harness.run_until(lambda: launcher.stores.listening)
    launcher.add_imports(ImportResults(fork_safe=["plain"]), wait=False)
    assert launcher.ready
    harness.wait_until_learned()
    assert "plain" in harness.worker()["warm"]


def test_a_named_module_that_is_not_fork_safe_is_left_out(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.ready_launcher(preload=["plain", "package.threads", "last"])
    worker = harness.worker()
    assert (worker["warm"], worker["forked"]) == (["plain", "last"], True)
    assert [record.levelname for record in caplog.records if "not preloading package.threads" in record.message] == [
        "WARNING"
    ]


def test_worker_processes_are_spawned_where_torch_is_not_fork_safe(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    (harness.packages / "torch/__init__.py").write_text(MODULES["torch/__init__.py"] + MODULES["package/threads.py"])
    harness.ready_launcher(preload=["auto"])
    assert harness.worker()["forked"] is False
    assert "no zygote, spawning workers: importing it starts 1 thread" in caplog.text
