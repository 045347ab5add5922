"""The pod's termination message: the first failure of the job, for `kubectl describe pod`."""

from __future__ import annotations

import contextlib
import os

from elasticjob_runtime.contract import OutcomeValue

MOST = 4000
"""Characters written: the kubelet takes 4096 bytes of a container's message."""


def write(outcome: OutcomeValue | None, path: str) -> None:
    """Best effort: where there is no such file, nobody asked for it."""
    if outcome is None or outcome.failure is None:
        return
    text = f"{outcome.message}\n{outcome.failure.get('traceback', '')}".strip()
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(descriptor, "w") as file:
            file.write(text[-MOST:])
