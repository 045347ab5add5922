"""How optimizer steps are counted."""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from elasticjob_runtime.training import auto_progress
from elasticjob_runtime.training.auto_progress import PAGE, PAGE_BYTES, Page, PassCounter, StepCounter


class Optimizer:
    """Calls the hooks as torch does. `inner`: those that its step calls; `raises`: its step raises an exception."""

    def __init__(self, *inner: Optimizer, raises: bool = False) -> None:
        self.inner = inner
        self.raises = raises

    def step(self, counter: StepCounter) -> None:
        counter.before(self, (), {})
        for one in self.inner:
            one.step(counter)
        if not self.raises:
            counter.after(self, (), {})


A, B, BROKEN = Optimizer(), Optimizer(), Optimizer(raises=True)
WRAPPER = Optimizer(A)
TWICE = Optimizer(A, A)

STEPS: dict[str, tuple[Sequence[Optimizer], int]] = {
    "one optimizer": ([A] * 10, 10),
    "one that calls another: ZeRO, super().step()": ([WRAPPER] * 10, 10),
    "one that calls another twice: SAM": ([TWICE] * 10, 10),
    "two optimizers, one after the other": ([A, B] * 10, 10),
    "an optimizer for each of eight parameters": ([Optimizer() for _ in range(8)] * 10, 10),
    "a GAN, five to one": ([A, A, A, A, A, B] * 10, 50),
    "a second optimizer after the first one's last step": ([A] * 10 + [B] * 10, 19),
    "a step that raised an exception, and the same again": ([A, Optimizer(raises=True)] + [A] * 20, 6),
    "none": ([], 0),
}


@pytest.mark.parametrize(("steps", "count"), STEPS.values(), ids=STEPS)
def test_a_step_is_counted_when_an_optimizer_comes_again(steps: Sequence[Optimizer], count: int) -> None:
    page = bytearray(PAGE_BYTES)
    counter = StepCounter(page)
    for optimizer in steps:
        optimizer.step(counter)
    assert PAGE.unpack_from(page)[0] == counter.steps == count


def test_the_page_has_the_count_and_the_time(tmp_path: pathlib.Path) -> None:
    path = auto_progress.page_file(str(tmp_path / "error.json"))
    assert auto_progress.read_page(path) is None
    auto_progress.create_page(path)
    assert auto_progress.read_page(path) is None, "no step yet"
    with open(path, "r+b") as file:
        file.write(PAGE.pack(7, 12.5, 70, 13.0))
    assert auto_progress.read_page(path) == Page(7, 12.5, 70, 13.0)
    auto_progress.create_page(path)
    assert auto_progress.read_page(path) is None, "of the next worker"


class Autograd(types.ModuleType):
    """In place of torch's module. A loss is a function, which may call `backward` itself, as activation checkpoints do,
    or raise an exception."""

    def backward(self, loss: Callable[[], object], /, **_: object) -> object:
        return loss()


def test_outermost_backward_passes_are_counted() -> None:
    page, autograd = bytearray(PAGE_BYTES), Autograd("autograd")
    PassCounter(page).wrap(autograd)
    assert autograd.backward(lambda: "gradients", retain_graph=True) == "gradients"
    autograd.backward(lambda: autograd.backward(lambda: None))
    with pytest.raises(ZeroDivisionError):
        autograd.backward(lambda: 1 / 0)
    autograd.backward(lambda: None)
    counted = Page(*PAGE.unpack_from(page))
    assert (counted.steps, counted.passes) == (0, 3)


def test_a_process_that_the_script_forks_is_not_counted() -> None:
    page = bytearray(PAGE_BYTES)
    counter, passes, autograd = StepCounter(page), PassCounter(page), Autograd("autograd")
    passes.wrap(autograd)
    counter.stop()
    passes.stop()
    A.step(counter)
    autograd.backward(lambda: None)
    assert page == bytearray(PAGE_BYTES)


def test_a_module_is_watched_without_being_imported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    before, seen = list(sys.meta_path), list[Any]()
    auto_progress.when_imported("imported_later", seen.append)
    assert seen == []
    import imported_later  # type: ignore[import-not-found]

    assert [each.value for each in seen] == [3]
    assert sys.meta_path == before
    auto_progress.when_imported("imported_later", seen.append)
    assert seen == [imported_later] * 2
    del sys.modules["imported_later"]
