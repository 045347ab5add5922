"""Runs programs in worker pods, by the kubectl of this machine: it speaks the API server's protocol for that."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence

from elasticjob.errors import ElasticJobError

SECONDS = 60.0
"""For one program in one pod."""


@dataclasses.dataclass(frozen=True)
class CommandOutput:
    text: str
    error: str
    """The last line that the program, or kubectl, wrote to stderr, if it failed; otherwise empty."""


def execute(flags: Sequence[str], pod: str, container: str, command: Sequence[str]) -> CommandOutput:
    """`flags`: of kubectl, for the cluster, the user and the namespace. Raises ElasticJobError without kubectl."""
    words = ["kubectl", *flags, "exec", pod, "-c", container, "--", *command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    except FileNotFoundError:
        raise ElasticJobError(
            "This machine has no kubectl, which runs the program that reads the stacks in the worker pods.",
            "Install it, or run in each worker pod: python3 -m elasticjob_runtime.agent.stacks",
        ) from None
    except subprocess.TimeoutExpired:
        return CommandOutput("", f"no answer within {SECONDS:g} s")
    lines = done.stderr.strip().splitlines()
    return CommandOutput(
        done.stdout, (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""
    )
