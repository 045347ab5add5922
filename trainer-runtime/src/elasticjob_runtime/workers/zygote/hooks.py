"""Hooks in a forked worker that report the phases of its start to the agent, and write its stacks if it hangs. The
script needs no changes.

- `fork`: the script is about to run.
- `connect`: the first `torch.distributed.init_process_group` has returned. NCCL connects later, at the first
  collective.
- `first-step`: the first `step()` of any `torch.optim.Optimizer` has returned. From then on the hook costs one
  comparison per step.

The optimizer steps are also counted (training/auto_progress.py). Each report is one datagram. If torch is too old for a
hook, or the script uses neither function, there is no report.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elasticjob_runtime.training import auto_progress, channel, flight_recorder
from elasticjob_runtime.training.auto_progress import STACKS_SIGNAL
from elasticjob_runtime.workers import linux

STACKS_BYTES = 4000
"""Upper limit of what `stacks` returns."""


def stacks_file(error_file: str | os.PathLike[str]) -> Path:
    """Where a worker writes its stacks: next to its error file."""
    return Path(auto_progress.stacks_file(os.fspath(error_file)))


def request_stacks(pid: int, error_file: Path) -> None:
    """Called by the agent. Sends no signal to a worker that has no handler for it, because it would die."""
    if stacks_file(error_file).exists() and linux.catches(pid, STACKS_SIGNAL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)


def stacks(error_files: Mapping[int, Path]) -> str:
    """The stacks that workers wrote, by local rank; empty if there are none. `error_files`: by local rank."""
    found = []
    for local_rank, error_file in error_files.items():
        with contextlib.suppress(OSError):
            text = stacks_file(error_file).read_text(errors="replace")[: STACKS_BYTES // len(error_files)].strip()
            found += [f"Stacks of local rank {local_rank}:\n{text}"] if text else []
    return "\n".join(found)


def install() -> None:
    """Call this right before the script runs."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        auto_progress.count_steps(error_file, functools.partial(flight_recorder.serve, error_file))
        with contextlib.suppress(OSError, RuntimeError):
            auto_progress.write_stacks_on_signal(error_file)
    channel.send_phase("fork")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None:
        _report_connect(distributed)
    auto_progress.when_imported(auto_progress.OPTIMIZER, _report_first_step)


def _report_first_step(optimizer: Any) -> None:
    hook = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if hook is not None:
        hook(_first_step())


def _report_connect(distributed: Any) -> None:
    """Wraps `init_process_group`, under both its names, until it first succeeds."""
    modules: list[Any] = [
        module for module in (distributed, sys.modules.get("torch.distributed.distributed_c10d")) if module is not None
    ]
    original: Callable[..., Any] | None = getattr(distributed, "init_process_group", None)
    if original is None:  # torch without distributed
        return
    function = original

    @functools.wraps(function)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        began = time.time()
        result = function(*args, **kwargs)
        channel.send_phase("connect", began=began)
        for module in modules:
            if module.init_process_group is init_process_group:
                module.init_process_group = function
        return result

    for module in modules:
        module.__dict__["init_process_group"] = init_process_group


def _first_step() -> Callable[..., None]:
    reported = False

    def is_compiling() -> bool:
        compiler = getattr(sys.modules["torch"], "compiler", None)
        return bool(getattr(compiler, "is_compiling", bool)())

    def stepped(*_: Any) -> None:
        nonlocal reported
        if reported or is_compiling():  # torch.compile must not trace a socket
            return
        reported = True
        channel.send_phase("first-step")

    return stepped
