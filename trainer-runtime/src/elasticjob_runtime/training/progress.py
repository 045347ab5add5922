"""`report_progress`, `expect_pause`: tell the agent how far the training is, and when it rests. Standard library
only."""

from __future__ import annotations

import dataclasses
import math
import os

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import channel

PAUSE_WAIT = 1.0
"""s that an agent which is busy is waited for: progress that is lost is told by the next step, a pause is not."""


@dataclasses.dataclass
class _State:
    last_checkpoint_step: int | None = None


_state = _State()


def report_progress(step: int, **metrics: float) -> None:
    """Tells the agent that `step` steps are done, with metrics of your choice: `report_progress(step, loss=loss,
    accuracy=accuracy)`.

    Any rank may call it, as often as it likes (about 20 us); rank 0's is what the job shows. Metrics are anything that
    float() takes; a tensor on a GPU waits for the GPU here. Values that are not finite are left out, as JSON has no
    word for them.

    The agent goes by it where it looks for progress: a crash loop (--max-stalled-restarts), a hang (--hang-factor).

    Does nothing where there is no agent (plain python, torchrun), and never waits for one: what cannot be sent at once
    is dropped.

    Raises TypeError or ValueError for a metric that is no number, whether there is an agent or not.
    """
    numbers = {name: _number(name, value) for name, value in metrics.items()}
    if not os.environ.get(Env.AGENT_SOCKET):
        return
    channel.send(
        "progress",
        step=int(step),
        last_checkpoint_step=_state.last_checkpoint_step,
        metrics={name: number for name, number in numbers.items() if math.isfinite(number)},
    )


def expect_pause(seconds: float, why: str = "") -> None:
    """Tells the agent that the next step may begin as late as `seconds` from now: before an evaluation, a checkpoint, a
    download.

        expect_pause(1800, "evaluation")
        evaluate(model)

    For --hang-factor, which else takes it for a hang. Call it on every rank, also where one alone has something to do:
    the others wait for that one. The next `report_progress` with a new step ends the pause, so there is no harm in
    asking for more than it takes; what hangs in it is found that much later. `float("inf")`: for however long.

    Does nothing where there is no agent. Raises ValueError where `seconds` is negative or no number.
    """
    if not seconds >= 0:
        raise ValueError(f"expect_pause: {seconds!r} is no number of seconds")
    channel.send("phase", wait=PAUSE_WAIT, phase="pause", seconds=float(seconds), why=why)


def remember_checkpoint(step: int) -> None:
    """Notes the step of the newest checkpoint for the next message. Called by `checkpoints`."""
    _state.last_checkpoint_step = step


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a tensor or a numpy number has __float__
    except (TypeError, ValueError) as error:
        raise type(error)(f"report_progress: the metric {name!r} is not a number: {value!r}") from error
