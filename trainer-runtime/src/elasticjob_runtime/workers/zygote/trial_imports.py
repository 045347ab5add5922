"""Trial imports: a zygote imports what was learned in a fork of itself, package by package, and the fork takes its
place.

Where a package leaves the fork fit to be forked, the fork goes on as the zygote, and the process before it ends. Where
it does not, the fork ends, and the process before it goes on without that module. So nothing is imported twice, and
nothing unfit stays.

Imports run on a thread of lower priority, beside the training. On Linux priority is a thread's, and a fork has that of
the thread that forks: the main one, whose priority nobody lowered. A process without privileges could not raise its own
again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import socket
import stat
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence

from elasticjob_runtime.workers import linux
from elasticjob_runtime.workers.zygote.preload import WORKER_VARIABLES, Verdicts, by_package, within

NICE = 5
"""Of the thread that imports, beside whatever trains on this machine: a quarter of a core where that takes all of two.
Lower priority would not save work, and on a busy machine would put it off beyond a job's first minute."""

STACK_BYTES = 64 << 20
"""Of that thread: the main one's is 8 MB and grows."""

THREAD_END_SECONDS = 1.0
"""s for the kernel to forget a thread that has ended."""


class Asked(dict[bytes, bytes]):
    """`os.environ`'s own dictionary, which notes what was asked that has another answer in every worker, and the
    answer."""

    VARIABLES = frozenset(name.encode() for name in WORKER_VARIABLES)

    def __init__(self, given: Mapping[bytes, bytes]) -> None:
        super().__init__(given)
        self.seen: dict[str, str | None] = {}
        self.askers: dict[str, set[str]] = {}
        """Top-level package whose import asked -> the variables."""

    def __getitem__(self, key: bytes) -> bytes:
        self._note(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)

    def _note(self, key: object) -> None:
        if isinstance(key, bytes) and key in self.VARIABLES:
            value = self.get(key)
            self.seen.setdefault(key.decode(), None if value is None else value.decode(errors="surrogateescape"))
            self.askers.setdefault(package_in_import(), set()).add(key.decode())


def package_in_import() -> str:
    """The top-level package of the module that is being imported, by the calling thread's stack; empty: none is."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] if frame is not None else ""


def listen_to_environ(*, on: bool) -> None:
    kind = Asked if on else dict
    os.environ._data = os.environb._data = kind(os.environ._data)  # type: ignore[attr-defined]


def asked() -> dict[str, str | None]:
    """What was asked since `listen_to_environ`."""
    return dict(getattr(os.environ._data, "seen", {}))  # type: ignore[attr-defined]


def askers() -> dict[str, list[str]]:
    """The packages whose own imports asked, and for what, since `listen_to_environ`."""
    return {package: sorted(names) for package, names in getattr(os.environ._data, "askers", {}).items()}  # type: ignore[attr-defined]


def installed(name: str) -> bool:
    """Is it a module of site-packages? A user's own modules may do anything when they are imported, and may change."""
    spec = importlib.util.find_spec(name)
    origin = spec.origin if spec else None
    return origin is not None and ("site-packages" in origin or "dist-packages" in origin)


def import_one(name: str, *, anywhere: bool = False) -> str:
    """Returns what went wrong: the worker will import it itself and see. Empty: nothing."""
    try:
        if anywhere or installed(name):
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any module may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def aside(action: Callable[[], None]) -> None:
    """Runs it on a thread of low priority, and returns when that has gone."""

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


def unfit() -> str:
    """Why this process must not be forked; empty: it may."""
    threads = linux.threads()
    if threads > 1:
        return f"importing it starts {threads - 1} thread{'s' if threads > 2 else ''}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "importing it initialises CUDA"
    if device := open_device(linux.open_files()):
        return f"importing it opens {device}"
    if children := linux.living_children():
        return f"importing it starts {len(children)} process{'es' if len(children) > 1 else ''}"
    if linux.maps_semaphores():
        return "importing it makes a semaphore, which all workers would share"
    if connections := network_sockets():
        return f"importing it opens {connections} network connection{'s' if connections > 1 else ''}"
    return ""


def open_device(files: Iterable[str]) -> str:
    """A file that a process has open once its CUDA or ROCm driver is initialised, which no fork survives. Asking NVML
    does not open these.

    >>> open_device(["/dev/null", "/dev/nvidiactl", "/dev/nvidia-uvm"])
    '/dev/nvidia-uvm'
    """
    return next((file for file in files if file in ("/dev/nvidia-uvm", "/dev/kfd")), "")


def network_sockets() -> int:
    """How many sockets of the internet's families this process has open."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                with socket.socket(fileno=os.dup(int(entry))) as duplicate:
                    count += duplicate.family in (socket.AF_INET, socket.AF_INET6)
    return count


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A module that must not be in a zygote."""

    name: str
    why: str
    reads: list[str]
    """The variables that it asks for, where it is only unfit since each worker has another answer."""
    brought: list[str] = dataclasses.field(default_factory=list)
    """Modules of a package that are imported with it: they are not worth a mention."""


def take(names: Sequence[str], verdicts: Verdicts, adopt: Callable[[], None]) -> None:
    """Imports them in forks of this process. Returns in the last one that is fit, which is this process or a fork of
    it.

    `adopt`: makes the process that goes on a child of the agent.
    """
    brought: set[str] = set()
    for group in by_package(names):
        wanted = [name for name in to_try(group) if name not in brought and not verdicts.rules_on(name)]
        while wanted:
            refusals = _try(wanted, verdicts, adopt)
            if not refusals:
                break
            for refusal in refusals:
                verdicts.refuse(refusal.name, refusal.why, refusal.reads)
                brought.update(refusal.brought)
            wanted = [name for name in wanted if not within(name, refusals[0].name)]


def to_try(names: Sequence[str]) -> list[str]:
    """Of one package: what a trial would tell something about. Not what came with another package, and nothing that is
    not installed: libraries ask for dozens of those, and on a busy machine each fork takes a moment.

    >>> to_try(["os", "os.path"]), to_try(["not_installed_here", "not_installed_here.at_all"])
    ([], [])
    """
    new = [name for name in names if name not in sys.modules]
    if not new:
        return []
    top = new[0].partition(".")[0]
    with contextlib.suppress(Exception):  # finders of other packages are asked too
        spec = importlib.util.find_spec(top)
        is_namespace = spec is not None and spec.origin is None  # its parts are installed, or not
        return new if is_namespace or installed(top) else []
    return new


def _try(names: Sequence[str], verdicts: Verdicts, adopt: Callable[[], None]) -> list[Refusal]:
    """The first is of one of `names`. Empty: all are imported, and this process is the fork."""
    reading, writing = os.pipe()
    before = os.getpid()
    child = os.fork()
    if child:
        os.close(writing)
        return _wait(names, child, reading)
    os.close(reading)
    linux.die_with_parent(before)
    told: list[Refusal] = []
    aside(lambda: told.extend(_import_all(names, verdicts)))
    if not told and (problem := unfit()):
        told = [Refusal(names[-1], problem, [])]
    if told:
        os.write(writing, json.dumps([dataclasses.astuple(refusal) for refusal in told]).encode())
        os._exit(0)
    linux.die_alone()
    os.write(writing, b"fit")
    os.close(writing)
    adopt()
    return []


def _import_all(names: Sequence[str], verdicts: Verdicts) -> list[Refusal]:
    """In the fork, on the thread aside. Returns the first one that is unfit, if there is one, and the packages that it
    brought along and whose own imports ask for a worker's variables: trying each of them too could take as long
    again."""
    for name in names:
        listen_to_environ(on=True)
        before = set(sys.modules)
        error = import_one(name)
        reads, others = sorted(asked()), askers()
        listen_to_environ(on=False)
        if reads:
            new = sys.modules.keys() - before
            readers = [
                _reader(package, asks, new)
                for package, asks in others.items()
                if package in new and not within(name, package)
            ]
            return [_reader(name, reads), *readers]
        if (problem := _unfit_but_for_this_thread()) != "":
            return [Refusal(name, problem, [])]
        if name not in before and not error and name in sys.modules:
            verdicts.fit.append(name)
    return []


def _reader(name: str, reads: list[str], loaded: Iterable[str] = ()) -> Refusal:
    return Refusal(name, f"importing it reads {reads[0]}", reads, [module for module in loaded if within(module, name)])


def _unfit_but_for_this_thread() -> str:
    threads = linux.threads() - 2
    if threads > 0:
        return f"importing it starts {threads} thread{'s' if threads > 1 else ''}"
    return ""


def _wait(names: Sequence[str], child: int, reading: int) -> list[Refusal]:
    """In the process before: it ends when the fork goes on."""
    with os.fdopen(reading, "rb") as said:
        text = said.read()
    if text == b"fit":
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if text:
        return [Refusal(*fields) for fields in json.loads(text)]
    return [Refusal(names[0], f"importing it ends the process (status {status})", [])]


def import_for(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """In a preforked worker: imports what has another answer in every worker, under the environment that it will most
    likely have.

    Returns the variables that were asked for, and the answers: the worker can be used for any environment that gives
    the same.
    """
    before = dict(os.environ)
    kept: dict[str, str] = {
        name: before[name] for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "OPENBLAS_NUM_THREADS") if name in before
    }
    seen: dict[str, str | None] = {}

    def run() -> None:
        os.environ.update({**environment, **kept})
        listen_to_environ(on=True)
        for name in names:
            import_one(name)
        seen.update(asked())
        listen_to_environ(on=False)
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)

    aside(run)
    return seen
