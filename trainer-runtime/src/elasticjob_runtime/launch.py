"""Runs a container's command with the injected runtime on its search paths, in an image that need not have it.

Only here is the image's own environment known: a variable in a pod's spec would replace the image's PATH or PYTHONPATH.
The runtime comes last on both, and stays off PYTHONPATH altogether if the image, or a folder on the user's PYTHONPATH,
has a runtime of its own. The mounted files need not be executable, and neither a shell nor a writable folder is needed.
See docs/design/0015-injection.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NoReturn

from elasticjob_runtime.commands import RUNTIME, command_of, is_python
from elasticjob_runtime.sigterm import end_on_sigterm
from elasticjob_runtime.version import version_in

SOURCE = "ELASTICJOB_RUNTIME"  # contract.Env.RUNTIME: importing the contract would cost each container start 20 ms
TERMINATION_LOG = "ELASTICJOB_TERMINATION_LOG"  # contract.Env.TERMINATION_LOG
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for the same errors."""


def main() -> NoReturn:
    """Never returns: replaces this process with the container's command."""
    end_on_sigterm(os.getpid())
    injected = sys.path.pop(0)
    words = sys.argv[1:]
    if not words:
        _fail("elasticjob: launch.py needs the command that it runs", NOT_FOUND)
    environment = os.environ.copy()
    of_image, program = _folder_of_runtime(), _on_path("elasticrun")
    if of_image is None and program is not None and not is_python(words[0]):
        # Of another Python in the image than this one.
        command, where = list(words), f"runtime of the image ({program})"
    elif of_image is not None:
        command = list(words) if words[0] == "elasticrun" and program else command_of(words, sys.executable)
        where = f"runtime {version_in(of_image)} of the image ({of_image})"
    else:
        append(environment, "PYTHONPATH", injected)
        command = command_of(words, sys.executable)
        where = f"runtime {version_in(injected)} from {environment.get(SOURCE) or injected}"
    append(environment, "PATH", os.path.join(os.path.dirname(injected), "bin"))
    sys.stderr.write(first_line(where, words, command) + "\n")
    sys.stderr.flush()
    _execute(command, environment)


def append(environment: MutableMapping[str, str], name: str, folder: str) -> None:
    """Appends a folder to a search path. An unset PATH means the system's default, and still does."""
    before = environment.get(name) or (os.defpath if name == "PATH" else "")
    environment[name] = f"{before}{os.pathsep}{folder}" if before else folder


def _folder_of_runtime() -> str | None:
    """The folder from which this Python imports a runtime of the image or of the user. None: there is none."""
    for finder in sys.meta_path:
        spec = finder.find_spec(RUNTIME, None)
        if spec is not None and spec.origin:
            return os.path.dirname(os.path.dirname(spec.origin))
    return None


def _on_path(program: str) -> str | None:
    """Where the program is. shutil.which would cost 10 ms of imports."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def first_line(where: str, words: Sequence[str], command: Sequence[str]) -> str:
    """The first line of the container's log: which runtime runs, from where, and under which Python."""
    python = f"Python {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    supervised = is_python(words[0]) and list(words) != list(command)
    return f"elasticjob: {where}, {python}" + (f"; elasticrun runs the {words[0]} command" if supervised else "")


def _execute(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - deliberately no shell
    except FileNotFoundError:
        path = environment.get("PATH", "")
        _fail(f"elasticjob: the image has no program {command[0]!r} (PATH is {path})", NOT_FOUND)
    except OSError as error:
        _fail(f"elasticjob: cannot run {command[0]!r}: {error.strerror}", NOT_EXECUTABLE)


def _fail(text: str, code: int) -> NoReturn:
    sys.stderr.write(text + "\n")
    try:
        with open(os.environ.get(TERMINATION_LOG, "/dev/termination-log"), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError:
        pass  # the log has it
    raise SystemExit(code)
