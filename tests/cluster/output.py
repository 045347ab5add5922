"""Running a command to its end, and the error the cluster raises."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


class ClusterError(RuntimeError):
    """The test cluster cannot do what was asked. The message says what is wrong and what to do."""


def run(command: Sequence[str | Path], cwd: Path | None = None, env: dict[str, str] | None = None, stdin: str | None = None) -> str:
    """Runs a command to its end and returns its output. Raises ClusterError with the command and its words when it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]} is not installed: {error}") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(words)}: exit status {done.returncode}\n{(done.stderr or done.stdout).strip()}")
    return done.stdout


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"
