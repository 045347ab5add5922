"""Scripts that do what they should not get one clear sentence, and nothing half-committed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.runtime_session.driver import Driver, Worker
from tests.integration.runtime_session.history import begin, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture
def training(tmp_path: pathlib.Path) -> Iterator[Callable[[str], Driver]]:
    drivers: list[Driver] = []

    def start(mode: str) -> Driver:
        drivers.append(Driver(tmp_path, {"MODE": mode}, pathlib.Path(__file__).with_name("misuse.py")))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


def wait_for_mark(driver: Driver, tmp_path: pathlib.Path, worker: Worker, mark: str) -> None:
    path = tmp_path / f"{worker.name}.marks"
    wait_until(driver, lambda: path.exists() and mark in path.read_text().splitlines(), f"{worker.name}: {mark}")


def fails(driver: Driver, tmp_path: pathlib.Path, worker: Worker) -> str:
    """The last line of what `worker` says when it fails by itself."""
    wait_until(driver, lambda: worker.process.poll() is not None, f"{worker.name} ends", failures=False)
    assert worker.process.returncode == 1
    return (tmp_path / f"{worker.name}.log").read_text().strip().splitlines()[-1]


def results(driver: Driver, tmp_path: pathlib.Path, workers: list[Worker]) -> list[dict[str, Any]]:
    wait_until(driver, lambda: all(each.process.poll() == 0 for each in workers), "all end", failures=False)
    return [json.loads((tmp_path / f"{each.name}.json").read_text()) for each in workers]


def test_a_joiner_with_another_model_ends_and_the_others_train_on(
    training: Callable[[str], Driver], tmp_path: pathlib.Path
) -> None:
    driver = training("other model")
    a, b, c = begin(driver, "a", "b", later=["c"])
    wait_for_mark(driver, tmp_path, a, "committed 5")
    driver.plan([c, a, b], patience=0.5)  # as rank 0
    assert "the models of rank 0 have other parameters or buffers than those of rank 1" in fails(driver, tmp_path, c)
    driver.plan([a, b])
    one, other = results(driver, tmp_path, [a, b])
    assert one == other
    assert one["committed"] == 40


def test_an_error_of_the_script_ends_it_whatever_it_says(
    training: Callable[[str], Driver], tmp_path: pathlib.Path
) -> None:
    driver = training("own error")
    a, b = begin(driver, "a", "b")
    assert "says the script" in fails(driver, tmp_path, a)
    driver.plan([b])
    assert results(driver, tmp_path, [b])[0]["committed"] == 40


def test_a_step_that_is_interrupted_after_all_changes_counts(
    training: Callable[[str], Driver], tmp_path: pathlib.Path
) -> None:
    driver = training("only after all-reduce")
    a, b, c = begin(driver, "a", "b", "c")
    wait_for_mark(driver, tmp_path, a, "stepped 5")
    c.kill()
    driver.plan([a, b])
    one, other = results(driver, tmp_path, [a, b])
    assert one == other
    assert one["committed"] == 40


def test_a_step_that_is_interrupted_between_changes_on_all_ranks_is_never_committed(
    training: Callable[[str], Driver], tmp_path: pathlib.Path
) -> None:
    driver = training("scheduler after all-reduce")
    a, b = begin(driver, "a", "b")
    wait_for_mark(driver, tmp_path, a, "stepped 5")
    b.kill()
    driver.plan([a])
    assert "Communicate before optimizer.step()" in fails(driver, tmp_path, a)


def test_more_ranks_than_samples_train_alike(training: Callable[[str], Driver], tmp_path: pathlib.Path) -> None:
    driver = training("few samples")
    a, b, c, d = begin(driver, "a", "b", later=["c", "d"])
    wait_for_mark(driver, tmp_path, a, "committed 6")
    driver.plan([a, b, c, d], patience=0.5)
    first, *others = results(driver, tmp_path, [a, b, c, d])
    assert all(each == first for each in others)
    assert first["committed"] == 120


def test_an_evaluation_that_is_interrupted_is_left_and_the_training_goes_on(
    training: Callable[[str], Driver], tmp_path: pathlib.Path
) -> None:
    driver = training("evaluate")
    a, b, c, d = begin(driver, "a", "b", "c", later=["d"])
    wait_for_mark(driver, tmp_path, a, "evaluate 5")
    c.kill()
    driver.plan([a, b])
    wait_for_mark(driver, tmp_path, a, "evaluate 10")
    driver.plan([a, b, d])
    one, other, joiner = results(driver, tmp_path, [a, b, d])
    assert one["committed"] == other["committed"] == joiner["committed"] == 40
    assert one["weight"] == other["weight"] == joiner["weight"]
    for each in (one, other):
        assert None in each["found"]
        assert {1.0, 2.0, 3.0, None} >= set(each["found"]) >= {2.0, 3.0}
    assert set(joiner["found"]) == {3.0}
