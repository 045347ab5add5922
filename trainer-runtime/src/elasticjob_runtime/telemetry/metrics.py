"""An agent's Prometheus metrics. To add one, add a field to Metrics and a family to `Metrics.text`.

The agent's loop writes the fields, and the thread of metrics_server.py reads them.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
from collections.abc import Iterable, Mapping

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the phase histogram, s: a fork takes 5 ms, a cold start minutes."""


class AgentState(str, enum.Enum):
    """What this agent is doing."""

    WARMING = "warming"
    WAITING = "waiting"
    """For a plan, for members, or for a new plan after a failure."""
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
    """Fields that are None are unknown, and have no sample."""

    state: AgentState = AgentState.WARMING
    round: int = 0
    world_size: int = 0
    rank: int | None = None
    restarts: dict[str, int] = dataclasses.field(default_factory=dict)
    phases: dict[tuple[str, str], Histogram] = dataclasses.field(default_factory=dict)
    """(cause, phase) -> durations."""
    steps_lost: int | None = None
    step: int | None = None
    optimizer_steps: int | None = None
    backward_passes: int | None = None
    steps_per_second: float | None = None
    own_seconds: dict[int, float] = dataclasses.field(default_factory=dict)
    """By local rank."""
    last_checkpoint_step: int | None = None
    heartbeats_missed: int = 0
    store_up: bool = True
    connections_dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    """Why -> connections at the port for other agents that were not an agent's."""

    def add_restart(self, cause: str) -> None:
        self.restarts[cause] = self.restarts.get(cause, 0) + 1

    def add_dropped_connection(self, why: str) -> None:
        self.connections_dropped[why] = self.connections_dropped.get(why, 0) + 1

    def add_transition(
        self, cause: str, phases: Mapping[str, Mapping[str, float] | None], steps_lost: int | None
    ) -> None:
        """Records a finished transition with the phases that are known."""
        for phase, figures in phases.items():
            if figures is not None:
                self.phases.setdefault((cause, phase), Histogram()).observe(figures["seconds"])
        if steps_lost is not None:
            self.steps_lost = (self.steps_lost or 0) + steps_lost

    def text(self) -> str:
        """Prometheus text format 0.0.4."""
        states = [(_labels(state=one.value), int(one is self.state)) for one in AgentState]
        restarts = [(_labels(cause=cause), count) for cause, count in sorted(self.restarts.items())]
        dropped = [(_labels(reason=why), count) for why, count in sorted(self.connections_dropped.copy().items())]
        own = [(_labels(local_rank=str(rank)), seconds) for rank, seconds in sorted(self.own_seconds.items())]
        families = [
            _gauge("round", "Round of the current plan; 0: none.", self.round),
            _gauge("world_size", "Worker processes in the current plan.", self.world_size),
            _gauge("rank", "Group rank of this member; absent if it is not in the plan.", self.rank),
            _family("state", "gauge", "1 for the current state of this agent.", states),
            _family("restarts_total", "counter", "Restarts of the local workers, by cause.", restarts),
            _family("phase_seconds", "histogram", "Duration of the phases of transitions, by cause.", self._phases()),
            _counter("steps_lost_total", "Training steps repeated after transitions.", self.steps_lost),
            _gauge("step", "Last training step that rank 0 reported to this agent.", self.step),
            _gauge(
                "optimizer_steps",
                "Optimizer steps since the start of the local workers, if the script reports no progress.",
                self.optimizer_steps,
            ),
            _gauge(
                "backward_passes",
                "Backward passes since the start of the local workers, if they take no optimizer step.",
                self.backward_passes,
            ),
            _gauge("steps_per_second", "Training steps, or optimizer steps, per second.", self.steps_per_second),
            _family("own_step_seconds", "gauge", "What a step takes beyond waiting for other ranks, on average.", own),
            _gauge(
                "last_checkpoint_step",
                "Step of the newest checkpoint that rank 0 reported to this agent.",
                self.last_checkpoint_step,
            ),
            _counter("heartbeats_missed_total", "Times that a neighbor missed its heartbeats.", self.heartbeats_missed),
            _gauge("store_up", "1 if the rendezvous store responds.", int(self.store_up)),
            _family(
                "peer_connections_dropped_total",
                "counter",
                "Connections at the port for other agents that were not from an agent of this run.",
                dropped,
            ),
        ]
        return "".join(f"{line}\n" for family in families for line in family)

    def _phases(self) -> list[tuple[str, float]]:
        samples: list[tuple[str, float]] = []
        for (cause, phase), histogram in sorted(self.phases.copy().items()):
            total = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), list(histogram.counts), strict=True):
                total += count
                samples.append(("_bucket" + _labels(cause=cause, phase=phase, le=bound), total))
            samples.append(("_sum" + _labels(cause=cause, phase=phase), histogram.sum))
            samples.append(("_count" + _labels(cause=cause, phase=phase), total))
        return samples


def _gauge(name: str, help_text: str, value: float | None) -> list[str]:
    return _family(name, "gauge", help_text, [("", value)])


def _counter(name: str, help_text: str, value: float | None) -> list[str]:
    return _family(name, "counter", help_text, [("", value)])


def _family(name: str, kind: str, help_text: str, samples: Iterable[tuple[str, float | None]]) -> list[str]:
    """The lines of one metric family; empty if it has no samples."""
    full = f"elasticjob_agent_{name}"
    known = [f"{full}{suffix} {value:.10g}" for suffix, value in samples if value is not None]
    return [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}", *known] if known else []


def _labels(**labels: str) -> str:
    """Label values are constants of this package, so nothing needs escaping."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
