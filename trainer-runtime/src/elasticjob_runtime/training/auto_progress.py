"""Counts the optimizer steps of scripts that do not report their progress, without a change of the script.

torch calls global hooks around each `optimizer.step()` (since 2.0). What counts is the outermost call, because ZeRO,
SAM and `super().step()` nest; of several optimizers, a step begins when one comes again. A GAN that trains its
discriminator five times for each step of its generator takes five *optimizer steps* by this rule.

Some scripts train without such steps: with optimizers of their own, or while a GradScaler skips steps. So backward
passes are counted, too. They are no steps, but show that the script trains.

The count goes to a page that the agent reads when it wants to: a file of the agent's, mapped by the worker process. A
step costs no system call and no message. The file is there if the agent wants the count, and only then.

Standard library only, and nothing else of this package: worker processes that were executed load this file by its path
(workers/exec_hooks/sitecustomize.py).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.machinery
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

STACKS_SIGNAL = signal.SIGRTMIN + 9
"""Makes a worker write the stacks of all its threads, even while one of them holds the interpreter. Scripts do not use
this signal."""

OPTIMIZER = "torch.optim.optimizer"
AUTOGRAD = "torch.autograd"
COLLECTIVES = "torch.distributed.distributed_c10d"
PAGE = struct.Struct("=QdQd")
"""See Page."""
PAIR = struct.Struct("=Qd")
"""Half of it: what one counter writes."""
WAITED = struct.Struct("=Qdd")
"""Optimizer steps; the monotonic time of the last, s; how long this process had waited for other ranks by then, s."""
WAITED_AT = 64
"""Its place in the page."""
PAGE_BYTES = 4096
DEEPEST = 16
"""Calls of `step` that are open at once. More were left behind by steps that raised an exception, which torch does not
report."""


class Page(NamedTuple):
    """What a worker counted. Times are monotonic, s."""

    steps: int = 0
    """Of optimizers."""
    stepped_at: float = 0.0
    """When the last of them ended."""
    passes: int = 0
    """Backward passes."""
    passed_at: float = 0.0


def page_file(error_file: str) -> str:
    """The page of the worker with this error file."""
    return os.path.join(os.path.dirname(error_file), "steps")


def stacks_file(error_file: str) -> str:
    """Where a worker writes its stacks."""
    return os.path.join(os.path.dirname(error_file), "stacks")


def create_page(path: str) -> None:
    """Called by the agent before the start of a worker. A new file each time: an earlier process may still write to the
    old one. Raises OSError."""
    remove_page(path)
    with open(path, "xb") as file:
        file.truncate(PAGE_BYTES)


def remove_page(path: str) -> None:
    """Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def read_page(path: str) -> Page | None:
    """None: there is no page, or neither a step nor a backward pass yet."""
    page = Page(*_read(path, PAGE, 0))
    return page if page.steps or page.passes else None


def read_waited(path: str) -> tuple[int, float, float] | None:
    """As WAITED; None: there is no page, or no step yet."""
    steps, at, waited = _read(path, WAITED, WAITED_AT) or (0, 0.0, 0.0)
    return (steps, at, waited) if steps else None


def _read(path: str, part: struct.Struct, at: int) -> tuple[Any, ...]:
    """Empty: there is no page."""
    try:
        with open(path, "rb") as file:
            return part.unpack_from(file.read(PAGE_BYTES), at)
    except (OSError, struct.error):
        return ()


class WaitMeter:
    """How long the main thread has waited for other ranks, s: in `Work.wait`, and in the end of a backward pass, where
    DistributedDataParallel waits for its buckets in C++. The rest of a step is the rank's own time.

    Where collectives do not block, as on GPUs, nothing is seen of the wait.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._main = threading.get_ident()
        self._computed: tuple[float, float] | None = None
        """When the open backward pass had computed all gradients, and `seconds` then."""

    def wrap_wait(self, c10d: Any) -> None:
        """`c10d`: the module with the collectives, which call `Work.wait`."""
        work = getattr(c10d, "Work", None)
        wait = getattr(work, "wait", None)
        if wait is None:
            return

        @functools.wraps(wait)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._main:
                return wait(*args, **kwargs)
            began = time.monotonic()
            try:
                return wait(*args, **kwargs)
            finally:
                self.seconds += time.monotonic() - began

        timed._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compile does not trace it
        with contextlib.suppress(AttributeError, TypeError):
            work.wait = timed  # type: ignore[union-attr]

    def wrap_backward(self, autograd: Any) -> None:
        """`autograd`: the module, where `Tensor.backward` looks the function up."""
        backward, variable = getattr(autograd, "backward", None), getattr(autograd, "Variable", None)
        if backward is None or variable is None:
            return

        def computed() -> None:
            self._computed = (time.monotonic(), self.seconds)

        def started(_gradients: Any) -> None:
            """DistributedDataParallel queues its own callback later, so ours runs first."""
            variable._execution_engine.queue_callback(computed)

        @functools.wraps(backward)
        def timed(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            node = getattr(tensors, "grad_fn", None)
            if node is None or threading.get_ident() != self._main or _compiled_autograd():
                return backward(tensors, *args, **kwargs)
            handle = node.register_prehook(started)
            self._computed = None
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                handle.remove()
                self._returned()

        timed._torchdynamo_disable = True  # type: ignore[attr-defined]
        autograd.backward = timed

    def _returned(self) -> None:
        """What was waited for meanwhile in `Work.wait` is part of it."""
        if self._computed is not None:
            at, before = self._computed
            self.seconds = before + time.monotonic() - at


def _compiled_autograd() -> bool:
    """It traces the hooks of backward passes, so they must not have ours."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


class _Counter:
    def __init__(self, page: mmap.mmap | bytearray, at_first: Callable[[], None] = lambda: None) -> None:
        """`at_first` is called at the first step or pass."""
        self._page = page
        self._at_first = at_first

    def stop(self) -> None:
        """In a process that the script forks: what it does is not the training's."""
        self._page, self._at_first = bytearray(PAGE_BYTES), lambda: None


class StepCounter(_Counter):
    """The rule: see above. `before` and `after` are torch's hooks around each `step` of each optimizer."""

    def __init__(self, page: mmap.mmap | bytearray, at_first: Callable[[], None] = lambda: None) -> None:
        super().__init__(page, at_first)
        self.waits = WaitMeter()
        self.steps = 0
        self._open: list[int] = []
        """Optimizers whose `step` was entered, outermost first."""
        self._seen: set[int] = set()
        """Optimizers that came since the last count."""

    def before(self, optimizer: object, *_: Any) -> None:
        if len(self._open) >= DEEPEST:
            self._open.clear()
        self._open.append(id(optimizer))

    def after(self, optimizer: object, *_: Any) -> None:
        came = id(optimizer)
        if not self._open or self._open[0] != came:
            return
        self._open.clear()
        if came in self._seen or not self._seen:
            self.steps += 1
            self._seen.clear()
            now = time.monotonic()
            PAIR.pack_into(self._page, 0, self.steps, now)
            WAITED.pack_into(self._page, WAITED_AT, self.steps, now, self.waits.seconds)
            if self.steps == 1:
                self._at_first()
        self._seen.add(came)


class PassCounter(_Counter):
    """Counts the outermost calls of `torch.autograd.backward`: activation checkpoints call it within another."""

    def __init__(self, page: mmap.mmap | bytearray, at_first: Callable[[], None] = lambda: None) -> None:
        super().__init__(page, at_first)
        self.passes = 0
        self._within = False

    def wrap(self, autograd: Any) -> None:
        """`autograd`: the module. `Tensor.backward` and DistributedDataParallel look the function up there."""
        backward = getattr(autograd, "backward", None)
        if backward is None:
            return

        @functools.wraps(backward)
        def counting(*args: Any, **kwargs: Any) -> Any:
            if self._within:
                return backward(*args, **kwargs)
            self._within = True
            try:
                result = backward(*args, **kwargs)
            finally:
                self._within = False
            self.passes += 1
            PAIR.pack_into(self._page, PAIR.size, self.passes, time.monotonic())
            if self.passes == 1:
                self._at_first()
            return result

        counting._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compile does not trace it
        autograd.backward = counting


class _Finder:
    """Finds nothing itself: has another finder find one module, and calls `act` when that is imported."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        index = sys.meta_path.index(self)
        rest = sys.meta_path[index + 1 :]
        sys.meta_path.pop(index)
        for finder in rest:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)  # several may watch one module
            execute(module)
            self._act(module)

        with contextlib.suppress(AttributeError):  # an unknown kind of loader: it imports the module unwatched
            loader.exec_module = exec_module


def when_imported(name: str, act: Callable[[Any], None]) -> None:
    """Calls `act` with the module `name`, at once or right after its import. Imports nothing."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


def count_steps(error_file: str, at_first: Callable[[], None] = lambda: None) -> None:
    """Counts the optimizer steps and backward passes of this process, if its agent has made a page for them. `at_first`
    is called at the first step, and at the first pass."""
    try:
        fd = os.open(page_file(error_file), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        page = mmap.mmap(fd, PAGE_BYTES)
    except (OSError, ValueError):
        return
    finally:
        os.close(fd)
    counter, passes = StepCounter(page, at_first), PassCounter(page, at_first)
    os.register_at_fork(after_in_child=passes.stop)

    def wrap(autograd: Any) -> None:
        counter.waits.wrap_backward(autograd)
        passes.wrap(autograd)

    def register(optimizer: Any) -> None:
        if hasattr(optimizer, "register_optimizer_step_pre_hook"):  # since torch 2.0
            optimizer.register_optimizer_step_pre_hook(counter.before)
            optimizer.register_optimizer_step_post_hook(counter.after)
            os.register_at_fork(after_in_child=counter.stop)

    when_imported(OPTIMIZER, register)
    when_imported(COLLECTIVES, counter.waits.wrap_wait)
    when_imported(AUTOGRAD, wrap)


def write_stacks_on_signal(error_file: str) -> None:
    """Raises OSError, RuntimeError."""
    file = open(stacks_file(error_file), "w")  # noqa: SIM115 stays open until the process ends
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
