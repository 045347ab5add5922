"""torch's flight recorder of this worker process: which collectives it has begun, and which are over.

While the process runs, its agent asks torch's own server, whose threads answer while the script holds the interpreter
or waits in the kernel. A process that ends with an exception writes the recorder to files first. torch has both for
gloo since 2.8; with NCCL, neither has been tried.

Standard library only, and nothing else of this package: worker processes that were executed load this file by its path
(workers/exec_hooks/sitecustomize.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

MAX_ENTRIES = 200
"""Newest collectives in the JSON file. The pickle has all: 2,000 by default."""
MAX_PATH = 107
"""Bytes of the address of a Unix socket."""
_SYMBOLIZES = "torch._dynamo.callback"
"""Finding the lines of collectives imports this and 900 other modules: seconds. So lines are only asked for where it is
there."""


def socket_file(error_file: str) -> str:
    """Where the server of the worker with this error file listens."""
    return os.path.join(os.path.dirname(error_file), "recorder.sock")


def pickle_file(error_file: str) -> str:
    """What `torchfrtrace` reads."""
    return os.path.join(os.path.dirname(error_file), "recorder.pickle")


def json_file(error_file: str) -> str:
    """The newest entries, for the agent."""
    return os.path.join(os.path.dirname(error_file), "recorder.json")


_served = [0]
"""The process that has started its server."""


def serve(error_file: str) -> None:
    """Starts torch's server once, if this torch has it and a process group. It lasts as long as the process."""
    path = socket_file(error_file)
    server = getattr(_c10d(), "_WorkerServer", None)
    distributed = sys.modules.get("torch.distributed")
    if server is None or distributed is None or len(os.fsencode(path)) > MAX_PATH or os.getpid() in _served:
        return
    with contextlib.suppress(Exception):  # whatever is wrong with it, the training goes on
        if distributed.is_initialized():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            import ctypes  # here and below: every Python program that a worker process executes loads this file

            with _without_stderr():
                started = server(path, -1)
            # Never destroyed: its destructor writes to stderr as the process ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(started))
            _served[:] = [os.getpid()]


@contextlib.contextmanager
def _without_stderr() -> Any:
    """For a fraction of a millisecond: the server writes a line about its address."""
    kept = os.dup(2)
    try:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.dup2(null, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(null)
    finally:
        os.close(kept)


def save(error_file: str) -> None:
    """Writes the files of a process that ends with an exception."""
    with contextlib.suppress(Exception):  # whatever is wrong with it, the exception is what counts
        import json
        import pickle

        if (dump := _dump(_c10d())) is not None:
            _write(pickle_file(error_file), pickle.dumps(_completed(dump)))
            _write(json_file(error_file), json.dumps({"entries": dump["entries"][-MAX_ENTRIES:]}).encode())


def save_at_exit(error_file: str, worker: int) -> None:
    """Called at the exit of the interpreter: saves if an exception ends the process `worker`, and not a child of it."""
    if getattr(sys, "last_value", None) is not None and os.getpid() == worker:
        save(error_file)


def _dump(c10d: Any) -> dict[str, Any] | None:
    """None: there is none, or it is empty."""
    import pickle

    for name in ("_dump_fr_trace", "_dump_nccl_trace"):  # of gloo, and of NCCL
        dump = getattr(c10d, name, None)
        data: bytes | None = dump(True, _SYMBOLIZES in sys.modules, False) if dump is not None else None
        found: dict[str, Any] = pickle.loads(data) if data else {}  # noqa: S301 - torch has just written it
        if found.get("entries"):
            return found
    return None


def _completed(dump: dict[str, Any]) -> dict[str, Any]:
    """With what `torchfrtrace` needs, and gloo's recorder lacks (torch 2.15): the names of the process groups."""
    entries = [{"frames": [], **entry} for entry in dump["entries"]]
    config = dict(dump["pg_config"])
    distributed: Any = sys.modules["torch.distributed.distributed_c10d"]
    for group, name in distributed._world.pg_names.items():
        ranks = str(distributed.get_process_group_ranks(group))
        config.setdefault(name, {"name": name, "desc": group.group_desc, "ranks": ranks})
    return {**dump, "entries": entries, "pg_config": config}


def _write(path: str, data: bytes) -> None:
    """Raises OSError. Whoever sees the file sees all of it."""
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.rename(f"{path}.new", path)


def _c10d() -> Any:
    """torch's bindings; None: the script has not imported them."""
    return sys.modules.get("torch._C._distributed_c10d")
