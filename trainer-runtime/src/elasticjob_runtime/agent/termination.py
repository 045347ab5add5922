"""The pod's termination message: why this agent ended, for `kubectl describe pod`. Of a failed job, its first
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
"""Bytes written: the kubelet takes 4096 of a container's message."""

DEFAULT = "/dev/termination-log"
"""Kubernetes' own. Written only where it is: elsewhere nobody asked for it."""


def message(reason: str, outcome: OutcomeValue | None) -> str:
    """`reason`: of this agent's end."""
    if outcome is None or outcome.failure is None:
        return reason
    return f"{outcome.message}\n{outcome.failure.get('traceback', '')}".strip()


def write(text: str, environment: Mapping[str, str]) -> None:
    """Never raises: the end of the job must not depend on it."""
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
