"""`report_progress`: tells the agent how far the training is. Standard library only."""

from __future__ import annotations

import dataclasses
import math
import os

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import channel


@dataclasses.dataclass
class _State:
    last_checkpoint_step: int | None = None


_state = _State()


def report_progress(step: int, **metrics: float) -> None:
    """Tells the agent that `step` steps are done, with metrics of your choice: `report_progress(step, loss=loss, accuracy=accuracy)`.

    Any rank may call it, as often as it likes (about 20 us); rank 0's is what the job shows. Metrics are anything that float() takes; a
    tensor on a GPU waits for the GPU here. Values that are not finite are left out, as JSON has no word for them.

    The agent goes by it where it looks for progress: a crash loop (--max-stalled-restarts), a hang (--hang-factor).

    Does nothing where there is no agent (plain python, torchrun), and never waits for one: what cannot be sent at once is dropped.

    Raises TypeError or ValueError for a metric that is no number, whether there is an agent or not.
    """
    numbers = {name: _number(name, value) for name, value in metrics.items()}
    if not os.environ.get(Env.AGENT_SOCKET):
        return
    channel.tell(
        "progress",
        step=int(step),
        last_checkpoint_step=_state.last_checkpoint_step,
        metrics={name: number for name, number in numbers.items() if math.isfinite(number)},
    )


def remember_checkpoint(step: int) -> None:
    """Notes the step of the newest checkpoint for the next message. Called by `checkpoints`."""
    _state.last_checkpoint_step = step


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a tensor or a numpy number has __float__
    except (TypeError, ValueError) as error:
        raise type(error)(f"report_progress: the metric {name!r} is not a number: {value!r}") from error
