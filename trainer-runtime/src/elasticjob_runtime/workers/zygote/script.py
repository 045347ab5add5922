"""Runs the user's script in a fork of the zygote, as if in a fresh interpreter.

Everything that `python -u script.py` or `python -u -m module` sets up is set up again: the environment, standard
streams, signals, `sys.argv`, `sys.path[0]`, a new `__main__` and the seeds of random generators. An exception that ends
the script is written to torchelastic's error file even without `@record`. What the script imports is reported to the
agent, so that the next zygote preloads it.
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
from collections.abc import Collection, Sequence
from typing import Any

from elasticjob_runtime.workers import error_file, linux
from elasticjob_runtime.workers.zygote import hooks, late_environment, patches

STREAMS = ("stdin", "stdout", "stderr")

INTERRUPTED = -2
"""Exit code of a script that a KeyboardInterrupt ended."""


def run(message: dict[str, Any], fds: Sequence[int], agent: socket.socket, users_of_torch: Collection[str]) -> None:
    """Becomes the worker that `message` describes: {"environment", "command", "arguments", "module": bool, "stdio": [0,
    1, 2]}. `fds` are the descriptors for `stdio`, `users_of_torch` the loaded packages that use torch."""
    zygote_environment = dict(os.environ)
    environment: dict[str, str] = message["environment"]
    set_environment(environment)
    set_stdio(dict(zip(message["stdio"], fds, strict=True)))
    reset_signals()
    reseed()
    late_environment.apply_threads(zygote_environment, environment)
    patches.apply(environment)
    arguments: list[str] = message["arguments"]
    sys.argv = arguments
    sys.orig_argv[:] = message["command"]
    linux.set_command_line(message["command"])
    folder = os.getcwd() if message["module"] else os.path.dirname(os.path.realpath(arguments[0]))
    sys.path[:1] = [] if getattr(sys.flags, "safe_path", False) else [folder]  # since Python 3.11
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 keeps the parent's after a fork
    reporter = ImportReporter(agent)
    sys.meta_path.insert(0, reporter)
    late_environment.FirstImport(
        users_of_torch,
        lambda: reporter.report_too_late(late_environment.apply(environment, dict(os.environ))),
    ).watch()
    error_file.enable(os.getpid(), environment.get(error_file.VARIABLE))
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    hooks.install()
    leave(run_script(message["module"], arguments[0], main))


def run_script(module: bool, script: str, main: types.ModuleType) -> int:
    """Runs the script. Returns what the interpreter would exit with, or INTERRUPTED."""
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
    """Exits as an interpreter does: waits for threads, runs exit functions, destroys the script's globals, flushes open
    files.

    It skips the teardown of modules, which takes longer than a restart may.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself calls
        atexit._run_exitfuncs()
        # The interpreter stops daemon threads here. This one cannot, and they would miss the globals they use.
        if len(sys._current_frames()) == 1:
            sys.modules["__main__"].__dict__.clear()
            gc.collect()
        for thing in gc.get_objects():
            if isinstance(thing, io.IOBase):
                with contextlib.suppress(OSError, ValueError):
                    thing.flush()
    finally:
        if code == INTERRUPTED:  # as the interpreter does: the parent sees the signal
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
    """Writes torchelastic's error file and prints the traceback, from the script's first frame on."""
    traceback = error.__traceback__
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while traceback is not None and traceback.tb_frame.f_code.co_filename in own:
        traceback = traceback.tb_next
    error = error.with_traceback(traceback)
    if not isinstance(error, KeyboardInterrupt):  # the exit status says so
        error_file.write(error)
    try:
        sys.excepthook(type(error), error, traceback)
    except BaseException:  # noqa: BLE001 - the script's own hook may raise anything
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
    """Connects the standard streams to the given descriptors; others stay the agent's. Python's stream objects are the
    zygote's, which was started with `-u`, except one that was closed then."""
    for target, fd in descriptors.items():
        os.dup2(fd, target)
        os.close(fd)
        if getattr(sys, STREAMS[target]) is None:
            stream = open(target, "w" if target else "r", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
            setattr(sys, STREAMS[target], stream)
            setattr(sys, f"__{STREAMS[target]}__", stream)


def reset_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def reseed() -> None:
    """Seeds the generators of Python, numpy and torch from the system's entropy, as a fresh interpreter does."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


class ImportReporter:
    """A finder that finds nothing, but reports the name of every module that is looked for to the agent (ImportLog).

    Each line is JSON: a name, or a list of variables that the script set too late for a library that was preloaded.
    """

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._pid = os.getpid()
        agent.setblocking(False)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        self._report(name)

    def report_too_late(self, variables: list[str]) -> None:
        if variables:
            self._report(variables)

    def _report(self, item: str | list[str]) -> None:
        if os.getpid() == self._pid:  # not in processes that the script forks
            with contextlib.suppress(OSError):
                self._agent.send(json.dumps(item).encode() + b"\n")
