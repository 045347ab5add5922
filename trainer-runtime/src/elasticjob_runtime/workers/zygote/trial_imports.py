"""Trial imports: a zygote imports learned modules in a fork of itself, package by package, and the fork takes its
place.

If the fork is still safe to fork after a package, it continues as the zygote and its parent exits. If not, the fork
exits, and the parent goes on without that module. So nothing is imported twice, and no zygote holds a module that is
not fork-safe.

Imports run on a thread of lower priority, next to the training. On Linux, priority belongs to a thread, and a forked
process has the priority of the thread that forks: the main one, whose priority is unchanged. An unprivileged process
could not raise its priority again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.zygote import environ_reads
from elasticjob_runtime.workers.zygote.fork_safety import fork_problem, thread_problem
from elasticjob_runtime.workers.zygote.preload import ImportResults, by_package, within

NICE = 5
"""Added to the nice value of the importing thread. On a machine whose cores are all busy training, this leaves it a
quarter of a core. A lower priority would not save work, and would postpone it beyond a job's first minute."""

STACK_BYTES = 64 << 20
"""Of the importing thread: the main thread's stack has 8 MB and grows."""

THREAD_END_SECONDS = 1.0
"""s to wait for the kernel to drop a thread that has ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedImport:
    """A module that a zygote must not import."""

    name: str
    reason: str
    reads: list[str] = dataclasses.field(default_factory=list)
    """The worker variables it reads, if that is the only problem."""


def is_installed(name: str) -> bool:
    """Whether this is a module of site-packages. A user's own modules may do anything when they are imported, and may
    change."""
    spec = importlib.util.find_spec(name)
    origin = spec.origin if spec else None
    return origin is not None and ("site-packages" in origin or "dist-packages" in origin)


def import_one(name: str, *, anywhere: bool = False) -> str | None:
    """Imports a module if it is installed, or `anywhere`. Returns the error, or None: a failing import is left to the
    script."""
    try:
        if anywhere or is_installed(name):
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any module may raise anything
        return f"{type(error).__name__}: {error}"
    return None


def run_at_low_priority(action: Callable[[], None]) -> None:
    """Runs `action` on a thread of lower priority, and returns when that thread is gone."""

    def run() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        action()

    stack = threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=run, name="imports")
    thread.start()
    threading.stack_size(stack)
    thread.join()
    end = time.monotonic() + THREAD_END_SECONDS
    while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < end:
        time.sleep(0.0005)


def import_in_forks(names: Sequence[str], results: ImportResults, on_fork: Callable[[], None]) -> None:
    """Imports modules in forks of this process, and adds to `results`. Returns in the last fork that is safe to fork,
    or in this process if there is none.

    `on_fork` runs in each fork that goes on: it makes the fork a child of the agent.
    """
    for group in by_package(names):
        wanted = [name for name in worth_a_trial(group) if not results.covers(name)]
        while wanted and (rejected := _try(wanted, results, on_fork)) is not None:
            results.reject(rejected.name, rejected.reason, rejected.reads)
            wanted = [name for name in wanted if not within(name, rejected.name)]


def worth_a_trial(names: Sequence[str]) -> list[str]:
    """Of modules of one package, those not yet imported, if the package is installed. Libraries look for dozens of
    optional packages that are not, and on a busy machine each fork takes a moment.

    >>> worth_a_trial(["os", "os.path"]), worth_a_trial(["not_installed_here", "not_installed_here.at_all"])
    ([], [])
    """
    new = [name for name in names if name not in sys.modules]
    if not new:
        return []
    top = new[0].partition(".")[0]
    with contextlib.suppress(Exception):  # other packages' finders are called too
        spec = importlib.util.find_spec(top)
        is_namespace = spec is not None and spec.origin is None  # its parts are installed, or not
        return new if is_namespace or is_installed(top) else []
    return new


def _try(names: Sequence[str], results: ImportResults, on_fork: Callable[[], None]) -> RejectedImport | None:
    """Returns None in the fork that imported everything; otherwise, in this process, which of `names` was rejected."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(writing)
        return _result_of(names, child, reading)
    os.close(reading)
    linux.die_with_parent(parent)
    tried: list[RejectedImport | None] = []
    run_at_low_priority(lambda: tried.append(_import_all(names, results)))
    rejected = tried[0] if tried else None
    if rejected is None and (problem := fork_problem()):
        rejected = RejectedImport(names[-1], problem)
    if rejected is not None:
        os.write(writing, json.dumps(dataclasses.asdict(rejected)).encode())
        os._exit(0)
    linux.outlive_parent()
    os.write(writing, b"safe")
    os.close(writing)
    on_fork()
    return None


def _import_all(names: Sequence[str], results: ImportResults) -> RejectedImport | None:
    """Runs on the importing thread of a fork, and stops at the first module that is not fork-safe."""
    for name in names:
        is_new = name not in sys.modules
        with environ_reads.recorded() as values:
            error = import_one(name)
        if reads := sorted(values):
            return RejectedImport(name, f"importing it reads {reads[0]}", reads)
        if problem := thread_problem(expected=2):  # the main thread and this one
            return RejectedImport(name, problem)
        if is_new and not error and name in sys.modules:
            results.fork_safe.append(name)
    return None


def _result_of(names: Sequence[str], child: int, reading: int) -> RejectedImport:
    """Runs in the parent, which exits if the fork goes on."""
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    if text == b"safe":
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if text:
        return RejectedImport(**json.loads(text))
    return RejectedImport(names[0], f"importing it ends the process (status {status})")


def import_under(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """In a preforked process: imports per-rank modules under the environment that its worker is expected to have.

    Returns the worker variables that were read, with their values: the process can run any worker whose environment
    has the same ones.
    """
    before = dict(os.environ)
    kept: dict[str, str] = {
        name: before[name] for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "OPENBLAS_NUM_THREADS") if name in before
    }
    values: dict[str, str | None] = {}

    def run() -> None:
        os.environ.update({**environment, **kept})
        with environ_reads.recorded() as reads:
            for name in names:
                import_one(name)
        values.update(reads)
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)

    run_at_low_priority(run)
    return values
