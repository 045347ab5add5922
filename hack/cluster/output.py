"""Running a command to its end, and the error the cluster raises."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""Prefix of a command that gets SIGKILL when the thread that started it ends. The process ID is the command's own."""


class ClusterError(RuntimeError):
    """The test cluster cannot do what was requested. The message says what is wrong and what to do."""


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with the folders that hold runc, ip and iptables on PATH: root has them only after a
    login."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin", **more}


def run(
    command: Sequence[str | Path], cwd: Path | None = None, env: dict[str, str] | None = None, stdin: str | None = None
) -> str:
    """Runs a command to its end and returns its output. Raises ClusterError with the command and its output if it
    fails.

    The command ends with this process, even if this one is killed, so that it does not keep changing the machine during
    the next run.
    """
    words = [str(word) for word in command]
    guarded = [*DIE_WITH_PARENT, *words]
    done = subprocess.run(
        guarded, cwd=cwd, env=env or environment(), input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ClusterError(f"{' '.join(words)}: exit status {done.returncode}\n{(done.stderr or done.stdout).strip()}")
    return done.stdout


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"
