"""How optimizer steps are counted."""

from __future__ import annotations

import pathlib
import sys
import threading
import time
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
    began: list[str] = []
    counter, passes = StepCounter(page, lambda: began.append("step")), PassCounter(page, lambda: began.append("pass"))
    autograd = Autograd("autograd")
    passes.wrap(autograd)
    counter.stop()
    passes.stop()
    A.step(counter)
    autograd.backward(lambda: None)
    assert (page, began) == (bytearray(PAGE_BYTES), [])


def test_the_first_step_and_the_first_pass_are_told() -> None:
    """The flight recorder is served from then on."""
    began: list[str] = []
    page = bytearray(PAGE_BYTES)
    counter, passes = StepCounter(page, lambda: began.append("step")), PassCounter(page, lambda: began.append("pass"))
    autograd = Autograd("autograd")
    passes.wrap(autograd)
    for _ in range(3):
        A.step(counter)
        autograd.backward(lambda: None)
    assert began == ["step", "pass"]


def test_a_module_is_watched_without_being_imported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    before, seen = list(sys.meta_path), list[Any]()
    for _ in range(2):
        auto_progress.when_imported("imported_later", seen.append)
    assert seen == []
    import imported_later  # type: ignore[import-not-found]

    assert [item.value for item in seen] == [3, 3]
    assert sys.meta_path == before
    auto_progress.when_imported("imported_later", seen.append)
    assert seen == [imported_later] * 3
    del sys.modules["imported_later"]


class Collectives:
    """torch's modules, as far as a WaitMeter knows them: a backward pass computes, and ends with a wait."""

    def __init__(self, clock: list[float]) -> None:
        callbacks: list[Callable[[], None]] = []

        class Engine:
            queue_callback = staticmethod(callbacks.append)

        class Variable:
            _execution_engine = Engine

        class Work:
            def wait(self, seconds: float = 2.0) -> bool:
                clock[0] += seconds
                return True

        class Node:
            def register_prehook(self, hook: Callable[[Any], None]) -> Node:
                self.hook = hook
                return self

            def remove(self) -> None:
                del self.hook

        class Tensor:
            grad_fn: Node | None = Node()

        def backward(tensor: Tensor, *, raises: bool = False) -> str:
            if tensor.grad_fn is not None:
                tensor.grad_fn.hook(())
            clock[0] += 3.0  # computes
            if raises:
                raise RuntimeError
            for callback in callbacks:
                callback()
            callbacks.clear()
            self.Work().wait()  # not counted twice
            clock[0] += 5.0  # waits in C++
            return "done"

        self.Variable, self.Work, self.Tensor, self.backward = Variable, Work, Tensor, backward


def test_what_a_rank_waits_for_others_is_not_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    module, page = Collectives(clock), bytearray(PAGE_BYTES)
    counter = StepCounter(page)
    counter.waits.wrap_wait(module)
    counter.waits.wrap_backward(module)
    assert module.Work().wait(1.5)
    assert counter.waits.seconds == 1.5
    assert module.backward(module.Tensor()) == "done"
    assert counter.waits.seconds == 1.5 + 7.0
    with pytest.raises(RuntimeError):
        module.backward(module.Tensor(), raises=True)
    assert counter.waits.seconds == 1.5 + 7.0
    thread = threading.Thread(target=module.Work().wait)
    thread.start()
    thread.join()
    assert counter.waits.seconds == 1.5 + 7.0, "another thread's wait does not keep the training waiting"
    A.step(counter)
    assert auto_progress.WAITED.unpack_from(page, auto_progress.WAITED_AT) == (1, clock[0], 8.5)


def test_a_torch_without_collectives_is_left_alone() -> None:
    module = types.SimpleNamespace()
    meter = auto_progress.WaitMeter()
    meter.wrap_wait(module)
    meter.wrap_backward(module)
    assert not vars(module)
