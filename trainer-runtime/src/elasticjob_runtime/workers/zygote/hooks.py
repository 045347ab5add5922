"""Inside a forked worker: tells the agent of the start's phases, without a change to the script; and shows stacks when
it hangs.

- `fork`: the script is about to run.
- `connect`: the first `torch.distributed.init_process_group` has returned (NCCL connects later, at the first
  collective).
- `first-step`: the first `step()` of any `torch.optim.Optimizer` has returned. After that the hook is one comparison
  per step.

Each is one datagram. Where torch is too old for a hook, or the script does it some other way, the agent is not told.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elasticjob_runtime.training import channel

STACKS_SIGNAL = signal.SIGRTMIN + 9
"""Makes a worker write the stacks of all its threads, even while one of them holds the interpreter. Not a signal that
scripts use."""


STACKS_SECONDS = 0.3
"""s that workers get to write their stacks before they are ended."""

STACKS_BYTES = 4000

HANG = "Hang"
"""Reason of a failure: workers that run, and do no step."""


def stacks_file(error_file: str | os.PathLike[str]) -> Path:
    """Where a worker writes its stacks: beside its error file."""
    return Path(error_file).with_name("stacks")


def ask_for_stacks(pid: int, error_file: Path) -> None:
    """Called by the agent. A worker that could not prepare for the signal would die of it, and is not asked."""
    if stacks_file(error_file).exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)


def stacks(error_files: Mapping[int, Path]) -> str:
    """What the workers wrote, by local rank; empty: nothing. At most STACKS_BYTES."""
    found = []
    for local_rank, error_file in error_files.items():
        with contextlib.suppress(OSError):
            text = stacks_file(error_file).read_text(errors="replace")[: STACKS_BYTES // len(error_files)].strip()
            found += [f"Stacks of local rank {local_rank}:\n{text}"] if text else []
    return "\n".join(found)


def watch() -> None:
    """Call it right before the script runs."""
    with contextlib.suppress(OSError, RuntimeError):
        _show_stacks()
    channel.tell_phase("fork")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None:
        _watch_connect(distributed)
    optimizer = sys.modules.get("torch.optim.optimizer")
    hook = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if hook is not None:
        hook(_first_step())


def _show_stacks() -> None:
    if error_file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        file = stacks_file(error_file).open("w")  # open as long as the process lives
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)


def _watch_connect(distributed: Any) -> None:
    """Both names of the function get a wrapper, until its first success."""
    homes: list[Any] = [
        home for home in (distributed, sys.modules.get("torch.distributed.distributed_c10d")) if home is not None
    ]
    original: Callable[..., Any] | None = getattr(distributed, "init_process_group", None)
    if original is None:  # torch without distributed
        return
    function = original

    @functools.wraps(function)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        began = time.time()
        result = function(*args, **kwargs)
        channel.tell_phase("connect", began=began)
        for home in homes:
            if home.init_process_group is init_process_group:
                home.init_process_group = function
        return result

    for home in homes:
        home.__dict__["init_process_group"] = init_process_group


def _first_step() -> Callable[..., None]:
    told = False
    compiler = getattr(sys.modules["torch"], "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", lambda: False)

    def stepped(*_: Any) -> None:
        nonlocal told
        if told or is_compiling():  # a compiled step must not trace a socket
            return
        told = True
        channel.tell_phase("first-step")

    return stepped
