"""Runs a user's script in a process that already has a history (a fork of the zygote), so that the script cannot tell.

What `python -u script.py` or `python -u -m module` sets up is set up again: environment, stdio, signals, `sys.argv`,
`sys.path[0]`, a fresh `__main__`, random numbers seeded anew. An exception that ends the script goes to torchelastic's
error file too, `@record` or not. What the script imports beyond the zygote is reported, so that the next zygote has it.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib.machinery
import io
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

from elasticjob_runtime.workers import error_file, linux
from elasticjob_runtime.workers.zygote import hooks, late_environment, reinit, resource_tracker

STREAMS = ("stdin", "stdout", "stderr")

INTERRUPTED = -2
"""Exit code of a script that a KeyboardInterrupt ended."""


def run(message: dict[str, Any], fds: Sequence[int], agent: socket.socket) -> None:
    """Becomes the worker that `message` describes: {"environment", "command", "arguments", "module": bool, "stdio": [0,
    1, 2]}; `fds` are for stdio."""
    loaded_under = dict(os.environ)
    set_environment(message["environment"])
    set_stdio(dict(zip(message["stdio"], fds, strict=True)))
    reset_signals()
    reseed()
    late_environment.apply_threads(loaded_under, message["environment"])
    ask_for_no_libuv(message["environment"])
    arguments: list[str] = message["arguments"]
    sys.argv = arguments
    sys.orig_argv[:] = message["command"]
    linux.set_command_line(message["command"])
    resource_tracker.outlive()
    folder = os.getcwd() if message["module"] else os.path.dirname(os.path.realpath(arguments[0]))
    sys.path[:1] = [] if getattr(sys.flags, "safe_path", False) else [folder]  # since Python 3.11
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 leaves the parent's after a fork
    reporter = ImportReporter(agent)
    sys.meta_path.insert(0, reporter)
    late_environment.FirstImport(
        late_environment.users_of_torch(),
        lambda: reporter.tell_too_late(late_environment.apply(message["environment"], dict(os.environ))),
    ).watch()
    error_file.write_for(os.getpid(), message["environment"].get(error_file.VARIABLE))
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    reinit.watch(message["environment"])
    hooks.watch()
    leave(exit_code_of(message["module"], arguments[0], main))


def exit_code_of(module: bool, script: str, main: types.ModuleType) -> int:
    """Runs it. Returns what the interpreter would exit with, or INTERRUPTED."""
    try:
        if module:
            runpy._run_module_as_main(script)  # type: ignore[attr-defined]  # what `python -m` itself calls
        else:
            run_file(os.path.abspath(script), main)
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            return request.code or 0
        print(request.code, file=sys.stderr)  # noqa: T201 - what the interpreter does
        return 1
    except KeyboardInterrupt as interrupt:
        report(interrupt)
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - what the interpreter does at top level
        report(error)
        return 1
    return 0


def leave(code: int) -> None:
    """Ends as an interpreter does: waits for threads, runs exit functions, lets go of what the script holds, flushes
    what it left open.

    But for the teardown of all modules, which here would touch what belongs to the zygote (and takes longer than a
    restart may).
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself calls
        atexit._run_exitfuncs()
        if (
            len(sys._current_frames()) == 1
        ):  # a daemon thread, which the interpreter would halt here, would look for what is gone
            sys.modules["__main__"].__dict__.clear()
            gc.collect()
        for thing in gc.get_objects():
            if isinstance(thing, io.IOBase):
                with contextlib.suppress(OSError, ValueError):
                    thing.flush()
    finally:
        if code == INTERRUPTED:  # as the interpreter ends then: whoever waits must see the signal
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code & 0xFF)


def run_file(path: str, main: types.ModuleType) -> None:
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main.__file__ = path
    main.__dict__.update(__loader__=loader, __spec__=None, __cached__=None)
    exec(code, main.__dict__)  # noqa: S102 - the user's own script, as the interpreter runs it


def report(error: BaseException) -> None:
    """Writes torchelastic's error file, and prints the traceback from the script's own first line on."""
    traceback = error.__traceback__
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while traceback is not None and traceback.tb_frame.f_code.co_filename in own:
        traceback = traceback.tb_next
    error = error.with_traceback(traceback)
    if not isinstance(error, KeyboardInterrupt):  # that one ends as the signal it was
        error_file.write(error)
    try:
        sys.excepthook(type(error), error, traceback)
    except BaseException:  # noqa: BLE001 - the script's own hook may raise anything; its error must not hide the first
        sys.__excepthook__(type(error), error, traceback)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()


def set_environment(environment: dict[str, str]) -> None:
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def set_stdio(descriptors: dict[int, int]) -> None:
    """From and to the given descriptors, output without one to where the agent's own goes. Python's streams are those
    of the zygote, which was started with `-u` and these variables; but for one that was closed then."""
    for target, fd in descriptors.items():
        os.dup2(fd, target)
        os.close(fd)
        if getattr(sys, STREAMS[target]) is None:
            stream = open(target, "w" if target else "r", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
            setattr(sys, STREAMS[target], stream)
            setattr(sys, f"__{STREAMS[target]}__", stream)


def reset_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def reseed() -> None:
    """As in a fresh interpreter: Python's, numpy's and torch's generators from the system's entropy."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def ask_for_no_libuv(environment: dict[str, str]) -> None:
    """torch 2.6 ignores USE_LIBUV for a store that the agent hosts (rendezvous._create_c10d_store), and fails where it
    has no libuv."""
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    if environment.get("USE_LIBUV") == "0" and rendezvous is not None:
        store = rendezvous.TCPStore
        rendezvous.__dict__["TCPStore"] = lambda *given, **named: store(*given, **{"use_libuv": False, **named})


class ImportReporter:
    """Tells the agent the name of every module that is looked for, once each. Finds nothing itself. Each line is JSON:
    a name, or a list of variables that the script has set too late for a library that was loaded before."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._pid = os.getpid()
        agent.setblocking(False)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        self._tell(name)

    def tell_too_late(self, variables: list[str]) -> None:
        if variables:
            self._tell(variables)

    def _tell(self, what: str | list[str]) -> None:
        if os.getpid() == self._pid:  # not in the script's own children
            with contextlib.suppress(OSError):
                self._agent.send(json.dumps(what).encode() + b"\n")
