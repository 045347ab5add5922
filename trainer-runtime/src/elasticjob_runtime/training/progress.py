"""`report_progress` and `expect_pause` report to the agent how far the training is, and when to expect no steps.
Standard library only."""

from __future__ import annotations

import atexit
import dataclasses
import math
import os
import time
from collections.abc import Mapping

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import channel

PAUSE_WAIT = 1.0
"""s to wait for a busy agent. The next step makes up for a lost progress report, but nothing for a lost pause."""

REPORT_INTERVAL = 0.1
"""s between two steps that a session reports by itself. Every report wakes the agent, on the same cores as the
training: with one per step it took 2 ms of a 50 ms step where all cores were busy."""


@dataclasses.dataclass
class _State:
    last_checkpoint_step: int | None = None
    reported: bool = False
    """The script reports its progress itself."""
    final: bool = False
    """The next checkpoint is the last of this process."""
    final_step: int | None = None
    """Later steps are done again by the next worker group; None: not known."""
    committed_at: float | None = None
    """Monotonic time of the last report of a session's step; None: there was none."""
    unreported: int | None = None
    """A session's newest step, if it is not reported."""


_state = _State()


def report_progress(step: int, **metrics: float) -> None:
    """Reports to the agent that `step` steps are done, with any metrics: `report_progress(step, loss=loss,
    accuracy=accuracy)`.

    Call it on any rank, as often as you like: a call takes about 20 us. The job shows what rank 0 reports. Metrics can
    be anything that float() accepts; converting a tensor on a GPU waits for the GPU. Metrics that are not finite are
    left out, because JSON cannot represent them.

    The agent uses the reports to detect crash loops (--max-stalled-restarts) and hangs (--hang-factor).

    Without an agent (plain python, torchrun), this does nothing. It never waits for the agent: a report that cannot be
    sent at once is dropped.

    Raises TypeError or ValueError if a metric is not a number, even without an agent.
    """
    _state.reported = True
    _send(step, metrics)


def report_committed(step: int) -> None:
    """Reports a step of a session, unless the script itself reports its progress. Of steps in quick succession, not
    every one; the last one at the end of the process."""
    if _state.reported:
        return
    now, before = time.monotonic(), _state.committed_at
    if before is None:
        atexit.register(_report_last)
    elif now - before < REPORT_INTERVAL:
        _state.unreported = step
        return
    _state.committed_at, _state.unreported = now, None
    _send(step, {})


def _report_last() -> None:
    if _state.unreported is not None and not _state.reported:
        _send(_state.unreported, {})


def _send(step: int, metrics: Mapping[str, float]) -> None:
    numbers = {name: _number(name, value) for name, value in metrics.items()}
    if not os.environ.get(Env.AGENT_SOCKET):
        return
    if _state.final_step is not None and step > _state.final_step:
        return
    channel.send(
        "progress",
        step=int(step),
        last_checkpoint_step=_state.last_checkpoint_step,
        metrics={name: number for name, number in numbers.items() if math.isfinite(number)},
    )


def expect_pause(seconds: float, why: str = "") -> None:
    """Announces to the agent that the next step may take up to `seconds` from now, for example because of an
    evaluation, a checkpoint or a download.

        expect_pause(1800, "evaluation")
        evaluate(model)

    Without it, a long pause in which a process does nothing is taken for a hang. Call it on every rank, even if only
    one has something to do: the others wait for that one. The next step ends the pause, so a generous limit does no
    harm, except that a hang during the pause is detected later. `float("inf")` sets no limit.

    Without an agent, this does nothing. Raises ValueError if `seconds` is negative or not a number.
    """
    if not seconds >= 0:
        raise ValueError(f"expect_pause: expected a number of seconds, got {seconds!r}")
    channel.send("phase", wait=PAUSE_WAIT, phase="pause", seconds=float(seconds), why=why)


def remember_checkpoint(step: int) -> None:
    """Remembers the step of the newest checkpoint for the next report. Called by `checkpoint.save_load`."""
    _state.last_checkpoint_step = step
    if _state.final:
        _state.final_step = step


def final_checkpoint_follows() -> None:
    """The worker group ends with the next checkpoint, so later steps are not reported. Called by `save_request`."""
    _state.final = True


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a tensor or a numpy number has __float__
    except (TypeError, ValueError) as error:
        raise type(error)(f"report_progress: the metric {name!r} is not a number: {value!r}") from error
