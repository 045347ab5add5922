"""What scripts do around their steps is done once on each rank, whoever is lost, joins or restarts."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.integration.runtime_session.conftest import Run
from tests.integration.runtime_session.driver import Driver
from tests.integration.runtime_session.history import begin, finish, wait_for_mark, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = pathlib.Path(__file__).with_name("loops.py")
STEPS, RATE = 60, 0.01

Loops = Callable[[str], Driver]


@pytest.fixture
def loops(tmp_path: pathlib.Path) -> Iterator[Callable[[str], Driver]]:
    """A driver of processes with a loop of this kind."""
    with contextlib.ExitStack() as drivers:
        yield lambda kind: drivers.enter_context(contextlib.closing(Driver(tmp_path, {"KIND": kind}, SCRIPT)))


def lose_c(driver: Driver, tmp_path: pathlib.Path, mark: str) -> list[Run]:
    """What a and b have at the end, if c is lost when both are at that mark."""
    a, b, c = begin(driver, "a", "b", "c")
    for item in (a, b):
        wait_for_mark(driver, tmp_path, item, mark)
    c.kill()
    driver.plan([a, b])
    return finish(driver, tmp_path, [a, b])


def assert_all_the_same(runs: list[Run], *, rate: float) -> None:
    for run in runs:
        run.assert_same_training(runs[0])
        assert run.facts["committed"] == STEPS
        assert run.facts["lr"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("each epoch", RATE * 0.9**6), ("all epochs", RATE * 0.9**6), ("scaled", RATE * 3)],
)
def test_a_joiner_has_what_the_others_have_done_and_does_it_with_them(
    loops: Loops, tmp_path: pathlib.Path, kind: str, rate: float
) -> None:
    """It goes through the epochs that are over, and its callbacks are called."""
    driver = loops(kind)
    a, b, c = begin(driver, "a", "b", later=["c"])
    wait_for_mark(driver, tmp_path, a, "committed 25")
    driver.plan([a, b, c], step_grace=0.5)
    runs = finish(driver, tmp_path, [a, b, c])
    assert_all_the_same(runs, rate=rate)
    assert runs[0].state["values"].get("epochs", 6) == 6


@pytest.mark.parametrize(
    ("kind", "mark", "rate"),
    [
        ("scheduler first", "in step 11", RATE * 0.9**STEPS),
        ("evaluate before a step", "evaluates after 5", RATE),
    ],
)
def test_what_is_done_before_a_step_that_is_interrupted_leaves_nothing(
    loops: Loops, tmp_path: pathlib.Path, kind: str, mark: str, rate: float
) -> None:
    runs = lose_c(loops(kind), tmp_path, mark)
    assert_all_the_same(runs, rate=rate)
    assert runs[0].facts["found"] == runs[1].facts["found"]


LATE = ["ends an epoch", "evaluates after an epoch", "evaluates in an epoch", "breaks"]


@pytest.mark.parametrize("kind", LATE)
def test_what_follows_a_step_or_an_evaluation_that_only_some_have_ended_is_done_once(
    loops: Loops, tmp_path: pathlib.Path, kind: str
) -> None:
    """d is lost when the first two processes have the decision for which the others wait."""
    driver = loops(kind)
    a, d, c, b = begin(driver, "a", "d", "c", "b")
    wait_for_mark(driver, tmp_path, b, "late")
    driver.pump(0.5)
    d.kill()
    driver.plan([a, c, b])
    runs = finish(driver, tmp_path, [a, c, b])
    assert_as_undisturbed(tmp_path, kind, runs)
    assert [run.facts["found"] for run in runs] == [[3.0] * 6 if kind == "ends an epoch" else []] * 3


def test_a_process_that_joins_in_an_evaluation_has_what_the_others_do_after_it(
    loops: Loops, tmp_path: pathlib.Path
) -> None:
    """The evaluation takes longer than the plan leaves it, so it has no result, and j is at the next epoch already."""
    kind = "evaluates while one joins"
    driver = loops(kind)
    a, c, b, j = begin(driver, "a", "c", "b", later=["j"])
    wait_for_mark(driver, tmp_path, b, "late")
    driver.plan([a, c, b, j], step_grace=0.5)
    runs = finish(driver, tmp_path, [a, c, b, j])
    assert_as_undisturbed(tmp_path, kind, runs)


@pytest.mark.parametrize("kind", ["adversarial", "freezes", "goes on after errors"])
def test_an_interrupted_step_leaves_nothing_whatever_the_script_does_in_it(
    loops: Loops, tmp_path: pathlib.Path, kind: str
) -> None:
    runs = lose_c(loops(kind), tmp_path, "in step 11")
    assert_as_undisturbed(tmp_path, kind, runs)


def assert_as_undisturbed(tmp_path: pathlib.Path, kind: str, runs: list[Run]) -> None:
    given = {"KIND": kind, "WORKER_NAME": "plain", "OUTPUT": str(tmp_path / "plain"), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, SCRIPT], env={**os.environ, **given}, check=True)
    plain = Run.read(tmp_path / "plain")
    for run in runs:
        run.assert_same_training(runs[0])
        assert run.facts["committed"] == plain.facts["committed"]
        assert run.facts["lr"] == pytest.approx(plain.facts["lr"])
        torch.testing.assert_close(run.state["model"], plain.state["model"], rtol=0, atol=1e-12)
        assert run.state["values"] == plain.state["values"]


def test_a_batch_that_is_left_by_break_before_its_step_holds_nothing_up(loops: Loops, tmp_path: pathlib.Path) -> None:
    one, other = lose_c(loops("break before a step"), tmp_path, "evaluates after 7")
    one.assert_same_training(other)
    assert one.facts == {"committed": 42, "lr": RATE, "found": [2.0] * 6}


def test_a_joiner_with_other_batches_ends_and_the_others_train_on(loops: Loops, tmp_path: pathlib.Path) -> None:
    driver = loops("other batches")
    a, b, c = begin(driver, "a", "b", later=["c"])
    wait_for_mark(driver, tmp_path, a, "committed 5")
    driver.plan([c, a, b], step_grace=0.5)  # as rank 0
    wait_until(driver, lambda: c.process.poll() is not None, "c ends", failures=False)
    log = (tmp_path / "c.log").read_text()
    assert "this rank was given other data than the other ranks: batch_size=3 and batch_size=6" in log
    driver.plan([a, b], told=[a, b])
    wait_until(driver, lambda: a.process.poll() == 0 == b.process.poll(), "the others end", failures=False)
    assert_all_the_same([Run.read(tmp_path / name) for name in "ab"], rate=RATE)


def test_what_is_done_at_the_end_of_an_epoch_is_done_after_a_restart_from_its_last_step(
    tmp_path: pathlib.Path,
) -> None:
    """The checkpoint of that step cannot have it."""
    environment = {**os.environ, "KIND": "each epoch", "WORKER_NAME": "plain", "GLOO_SOCKET_IFNAME": "lo"}

    def run(name: str, **more: str) -> int:
        given = {**environment, "CHECKPOINTS": str(tmp_path / "saved"), "OUTPUT": str(tmp_path / name), **more}
        return subprocess.run([sys.executable, SCRIPT], env=given, check=False).returncode

    assert run("first", DIES="1") == -signal.SIGKILL
    assert run("second") == 0
    assert run("third") == 0, "nothing is left but what follows the last step"
    for name in ("second", "third"):
        facts = json.loads((tmp_path / f"{name}.json").read_text())
        assert facts["lr"] == pytest.approx(RATE * 0.9**6)
        assert torch.load(tmp_path / f"{name}.pt")["values"] == {"epochs": 6}
