"""Exit codes of the agent: which end was it, and does it help to start again."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the agent. 1 is torchrun's for failed workers; the others follow sysexits.h where it has a fitting
    one."""

    SUCCEEDED = 0
    WORKERS_FAILED = 1
    """The job failed for good (outcome=failed). Starting this agent again does not help."""
    USAGE = 2
    """Wrong flags or arguments."""
    NO_SCRIPT = 66
    UNAVAILABLE = 69
    """The rendezvous service stayed out of reach for the whole join timeout. Starting again may help."""
    INTERNAL = 70
    RESTARTABLE = 75
    """Fenced or evicted: this agent lost its membership. Start it again."""
    DENIED = 77
    """The rendezvous service refused the credentials."""
    CONFIG = 78
    """This agent does not fit the others: contract version or --nproc-per-node."""
    INTERRUPTED = 130
    TERMINATED = 143
    """SIGTERM: left the job gracefully."""
