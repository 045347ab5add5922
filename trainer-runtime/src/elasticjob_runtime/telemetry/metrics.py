"""What an agent shows to Prometheus. Written by the agent's loop, read by the server's thread (metrics_server.py):
numbers only."""

from __future__ import annotations

import bisect
import dataclasses
import enum
from collections.abc import Iterable, Mapping

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""s, upper bounds of the phase histogram: a fork takes 5 ms, a cold start minutes."""


class State(str, enum.Enum):
    """What this agent is doing."""

    WARMING = "warming"
    WAITING = "waiting"
    """For a plan, for members, or for the workers of a failed plan to be replaced."""
    TRAINING = "training"
    STOPPING = "stopping"
    SPARE = "spare"
    LEAVING = "leaving"


class Histogram:
    """Counts per bucket, sum and count."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


@dataclasses.dataclass(slots=True)
class Metrics:
    """None: not known, and not shown."""

    state: State = State.WARMING
    round: int = 0
    world_size: int = 0
    rank: int | None = None
    restarts: dict[str, int] = dataclasses.field(default_factory=dict)
    phases: dict[tuple[str, str], Histogram] = dataclasses.field(default_factory=dict)
    """(cause, phase) -> durations."""
    steps_lost: int | None = None
    step: int | None = None
    steps_per_second: float | None = None
    last_checkpoint_step: int | None = None
    heartbeats_missed: int = 0
    store_up: bool = True

    def restarted(self, cause: str) -> None:
        self.restarts[cause] = self.restarts.get(cause, 0) + 1

    def changed(self, cause: str, phases: Mapping[str, Mapping[str, float] | None], steps_lost: int | None) -> None:
        """A change is over, with the phases that are known."""
        for phase, figures in phases.items():
            if figures is not None:
                self.phases.setdefault((cause, phase), Histogram()).observe(figures["seconds"])
        if steps_lost is not None:
            self.steps_lost = (self.steps_lost or 0) + steps_lost

    def text(self) -> str:
        """Prometheus text format 0.0.4."""
        lines: list[str] = []
        lines += _family("round", "gauge", "Round of the current plan; 0: none.", [("", self.round)])
        lines += _family("world_size", "gauge", "Workers in the current plan.", [("", self.world_size)])
        lines += _family("rank", "gauge", "Group rank of this member; missing: not in the plan.", [("", self.rank)])
        states = [(_labels(state=one.value), int(one is self.state)) for one in State]
        lines += _family("state", "gauge", "1 for what this agent is doing.", states)
        restarts = [(_labels(cause=cause), count) for cause, count in sorted(self.restarts.items())]
        lines += _family(
            "restarts_total",
            "counter",
            "Starts of the local workers after the first, by the cause of the plan.",
            restarts,
        )
        lines += self._phases()
        lines += _family(
            "steps_lost_total", "counter", "Training steps done again after changes.", [("", self.steps_lost)]
        )
        lines += _family("step", "gauge", "Last training step that rank 0 reported here.", [("", self.step)])
        lines += _family("steps_per_second", "gauge", "Rate of the training.", [("", self.steps_per_second)])
        checkpoint = [("", self.last_checkpoint_step)]
        lines += _family(
            "last_checkpoint_step", "gauge", "Step of the newest checkpoint that rank 0 reported here.", checkpoint
        )
        lines += _family(
            "heartbeats_missed_total", "counter", "Times that a neighbour fell silent.", [("", self.heartbeats_missed)]
        )
        lines += _family("store_up", "gauge", "1: the rendezvous store answers.", [("", int(self.store_up))])
        return "\n".join(lines) + "\n"

    def _phases(self) -> list[str]:
        samples: list[tuple[str, float]] = []
        for (cause, phase), histogram in sorted(self.phases.copy().items()):
            total = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), list(histogram.counts), strict=True):
                total += count
                samples.append(("_bucket" + _labels(cause=cause, phase=phase, le=bound), total))
            samples.append(("_sum" + _labels(cause=cause, phase=phase), histogram.sum))
            samples.append(("_count" + _labels(cause=cause, phase=phase), total))
        return _family("phase_seconds", "histogram", "Duration of the phases of changes, by cause.", samples)


def _family(name: str, kind: str, help_text: str, samples: Iterable[tuple[str, float | None]]) -> list[str]:
    """Empty where there is no sample."""
    full = f"elasticjob_agent_{name}"
    known = [f"{full}{suffix} {value:.10g}" for suffix, value in samples if value is not None]
    return [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}", *known] if known else []


def _labels(**labels: str) -> str:
    """Our own words only: nothing to escape."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
