"""Exit codes of the agent: how it ended, and whether restarting it can help."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the agent. 1 is torchrun's for failed workers; others follow sysexits.h where possible."""

    SUCCEEDED = 0
    WORKERS_FAILED = 1
    """The job failed for good (outcome=failed). Restarting this agent does not help."""
    USAGE = 2
    """Invalid flags or arguments."""
    NO_SCRIPT = 66
    UNAVAILABLE = 69
    """The rendezvous service was unreachable for the whole join timeout. Restarting may help."""
    INTERNAL = 70
    RUNTIME_UNUSABLE = 72
    """The injected runtime cannot run in this image: its Python is too old. Set by the runtime image's launch.py."""
    RESTARTABLE = 75
    """Fenced or replaced: this agent lost its membership. Restart it."""
    CANNOT_JOIN = 76
    """Its worker processes failed again and again before their first step with the others, or their connections to the
    others broke. The others train without them. Start another agent, on another machine if possible."""
    DENIED = 77
    """The rendezvous service refused the credentials."""
    CONFIG = 78
    """This agent is incompatible with the other members: contract version or --nproc-per-node."""
    SUSPECT = 79
    """The preflight checks of its machine fail. Start another agent, on another machine."""
    INTERRUPTED = 130
    TERMINATED = 143
    """SIGTERM: left the job gracefully."""

    @property
    def is_failure(self) -> bool:
        """Whether it needs an explanation: neither success nor the answer to a signal."""
        return self not in (ExitCode.SUCCEEDED, ExitCode.TERMINATED, ExitCode.INTERRUPTED)
