"""Scripts that do what they should not get one clear sentence, and nothing half-committed."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.runtime_session.driver import Driver, Worker
from tests.integration.runtime_session.history import begin, wait_for_mark, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


Training = Callable[[str], Driver]


@pytest.fixture
def training(tmp_path: pathlib.Path) -> Iterator[Callable[[str], Driver]]:
    script = pathlib.Path(__file__).with_name("misuse.py")
    with contextlib.ExitStack() as drivers:
        yield lambda mode: drivers.enter_context(contextlib.closing(Driver(tmp_path, {"MODE": mode}, script)))


def fails(driver: Driver, tmp_path: pathlib.Path, worker: Worker) -> str:
    """The last line of what `worker` says when it fails by itself."""
    wait_until(driver, lambda: worker.process.poll() is not None, f"{worker.name} ends", failures=False)
    assert worker.process.returncode == 1
    return (tmp_path / f"{worker.name}.log").read_text().strip().splitlines()[-1]


def results(driver: Driver, tmp_path: pathlib.Path, workers: list[Worker]) -> list[dict[str, Any]]:
    wait_until(driver, lambda: all(worker.process.poll() == 0 for worker in workers), "all end", failures=False)
    return [json.loads((tmp_path / f"{worker.name}.json").read_text()) for worker in workers]


def test_a_joiner_with_another_model_ends_and_the_others_train_on(training: Training, tmp_path: pathlib.Path) -> None:
    driver = training("other model")
    a, b, c = begin(driver, "a", "b", later=["c"])
    wait_for_mark(driver, tmp_path, a, "committed 5")
    driver.plan([c, a, b], step_grace=0.5)  # as rank 0
    assert "the models of rank 0 have other parameters or buffers than those of rank 1" in fails(driver, tmp_path, c)
    driver.plan([a, b])
    one, other = results(driver, tmp_path, [a, b])
    assert one == other
    assert one["committed"] == 40


def test_an_error_of_the_script_ends_it_whatever_it_says(training: Training, tmp_path: pathlib.Path) -> None:
    driver = training("own error")
    a, b = begin(driver, "a", "b")
    assert "says the script" in fails(driver, tmp_path, a)
    driver.plan([b])
    assert results(driver, tmp_path, [b])[0]["committed"] == 40


def test_a_step_that_is_interrupted_after_all_changes_counts(training: Training, tmp_path: pathlib.Path) -> None:
    driver = training("only after all-reduce")
    a, b, c = begin(driver, "a", "b", "c")
    wait_for_mark(driver, tmp_path, a, "stepped 5")
    c.kill()
    driver.plan([a, b])
    one, other = results(driver, tmp_path, [a, b])
    assert one == other
    assert one["committed"] == 40


def test_a_step_that_is_interrupted_between_changes_on_all_ranks_is_never_committed(
    training: Training, tmp_path: pathlib.Path
) -> None:
    driver = training("scheduler after all-reduce")
    a, b = begin(driver, "a", "b")
    wait_for_mark(driver, tmp_path, a, "stepped 5")
    b.kill()
    driver.plan([a])
    assert "Communicate before optimizer.step()" in fails(driver, tmp_path, a)


@pytest.mark.parametrize("mode", ["evaluate in a loop", pytest.param("evaluate", marks=pytest.mark.nightly)])
def test_an_evaluation_repeats_itself_when_a_process_is_lost(
    training: Training, tmp_path: pathlib.Path, mode: str
) -> None:
    driver = training(mode)
    a, b, c = begin(driver, "a", "b", "c")
    wait_for_mark(driver, tmp_path, a, "evaluate 5")
    c.kill()
    driver.plan([a, b])
    one, other = results(driver, tmp_path, [a, b])
    assert one == other
    assert one["found"] == [3.0] * 4 + [2.0] * 36
    assert one["values"]["calls"] == 40, "those of the interrupted call are undone"


def test_a_planned_join_waits_for_the_end_of_an_evaluation(training: Training, tmp_path: pathlib.Path) -> None:
    driver = training("evaluate")
    a, b, c = begin(driver, "a", "b", later=["c"])
    wait_for_mark(driver, tmp_path, a, "evaluate 5")
    driver.plan([a, b, c], step_grace=0.05, evaluation_grace=20)
    one, other, joiner = results(driver, tmp_path, [a, b, c])
    assert one["found"] == other["found"] == [2.0] * 5 + [3.0] * 35
    assert joiner["found"] == [3.0] * 35
    assert one["values"] == joiner["values"] == {"calls": 40, "evaluated": 40}


def test_an_evaluation_in_which_a_joiner_has_no_part_is_left_by_all(training: Training, tmp_path: pathlib.Path) -> None:
    driver = training("evaluate")
    a, b, c = begin(driver, "a", "b", later=["c"])
    wait_for_mark(driver, tmp_path, a, "evaluate 5")
    driver.plan([a, b, c])
    one, other, joiner = results(driver, tmp_path, [a, b, c])
    assert one["found"] == other["found"] == [2.0] * 4 + [None] + [3.0] * 35
    assert joiner["found"] == [3.0] * 35
    assert one["weight"] == other["weight"] == joiner["weight"]
    assert one["values"] == other["values"] == joiner["values"] == {"calls": 39, "evaluated": 39}
