"""SIGTERM before the agent handles it. Few imports: every container start pays for them.

The kernel drops a signal to a container's first process that has no handler for it. A pod that is deleted while its
agent is still imported would train until the kubelet kills it.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

TERMINATED = 143  # ExitCode.TERMINATED: importing the contract would take longer than what this is for


def end_on_sigterm(pid: int) -> None:
    """Ends the process `pid`, this one, at SIGTERM, as the kernel does with every process but a container's first. The
    agent installs its own handler before it joins the job."""
    if pid != 1 or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(TERMINATED)
