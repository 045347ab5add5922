"""The pod's termination message: why this agent ended, for `kubectl describe pod`. For a failed job, its first
failure."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from elasticjob_runtime.contract import Env, OutcomeValue

logger = logging.getLogger(__name__)

MOST = 4000
"""The maximum message size in bytes: the kubelet reads at most 4096 bytes of a container's termination message."""

DEFAULT = "/dev/termination-log"
"""The default path in Kubernetes. The file is written only if it exists; outside a pod it does not."""


def message(reason: str, outcome: OutcomeValue | None) -> str:
    """`reason`: why this agent ended."""
    if outcome is None or outcome.failure is None:
        return reason
    return f"{outcome.message}\n{outcome.failure.get('traceback', '')}".strip()


def write(text: str, environment: Mapping[str, str]) -> None:
    """Never raises: a message that cannot be written must not affect how the job ends."""
    named = environment.get(Env.TERMINATION_LOG)
    path = Path(named or DEFAULT)
    if not named and not path.exists():
        return
    try:
        if named:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if named else 0), 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode(errors="replace")[-MOST:])
    except OSError as error:
        with contextlib.suppress(OSError):
            logger.warning("%s=%s cannot be written: %s", Env.TERMINATION_LOG, path, error.strerror)
