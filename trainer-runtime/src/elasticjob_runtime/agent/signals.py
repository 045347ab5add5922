"""Signal handlers of the agent: signals that make it leave, signals that it forwards to the workers, and SIGCHLD."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from types import FrameType

from elasticjob_runtime.contract import ExitCode

LEAVE = {
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGHUP: ExitCode.TERMINATED,
    signal.SIGQUIT: ExitCode.TERMINATED,
}
"""Signal -> exit code of an agent that leaves because of it."""

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers send to ask a script for a checkpoint."""


def take(
    wakeup_fd: int,
    *,
    leave_on: Collection[int],
    on_leave: Callable[[signal.Signals], None],
    on_forward: Callable[[int], None],
    on_child: Callable[[], None],
) -> Callable[[], None]:
    """Installs the handlers, which run on the main thread; every signal also writes to `wakeup_fd`. Returns a function
    that restores the previous handlers.

    `leave_on`: the signals of LEAVE to handle. SIGHUP stays ignored if it is ignored already, since that is what nohup
    does.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        on_leave(signal.Signals(number))

    def forward(number: int, _frame: FrameType | None) -> None:
        on_forward(number)

    def child(_number: int, _frame: FrameType | None) -> None:
        on_child()

    wanted = {int(number) for number in leave_on} & LEAVE.keys()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        wanted.discard(signal.SIGHUP)
    handlers: dict[int, Callable[[int, FrameType | None], None]]
    handlers = {**dict.fromkeys(wanted, leave), **dict.fromkeys(FORWARDED, forward), signal.SIGCHLD: child}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    wakeup = signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)

    def restore() -> None:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore
