"""The demo's timeline, as pure functions: observations go in; what to show and when to delete a pod come out.

Times are Unix times in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hack.demo.observations import Finished, JobSeen, Observation, PodDeleted, StepSeen, WorldSeen


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the timeline."""

    time: float
    what: str
    detail: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """The current state of the job, as the terminal shows it."""

    workers: str = ""
    world: int = 0
    epoch: int = 0
    step: int = 0
    loss: float | None = None

    @property
    def state(self) -> str:
        """What changes seldom.

        >>> View(workers="3/4", world=3, epoch=5).state
        'worker pods 3/4  world size 3  epoch 5'
        """
        pods = f"worker pods {self.workers or '-'}"
        return f"{pods}  world size {self.world}  epoch {self.epoch}" if self.world else pods

    @property
    def figures(self) -> str:
        loss = "" if self.loss is None else f"  loss {self.loss:.4f}"
        return f"step {self.step}{loss}" if self.world else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeline:
    """Everything that has happened so far."""

    applied_at: float
    full: int
    """Number of worker pods at full size."""
    delete_at: int
    """Step at which the demo deletes a worker pod."""
    view: View = View()
    entries: tuple[Entry, ...] = ()
    processes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """UID of a worker pod -> process ID of its worker process."""
    worlds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """UID of a worker pod -> size of the last world that its process has printed."""
    steps_lost: int = 0
    restarted: int = 0
    """Worker processes that restarted in the remaining pods."""
    training: bool = False
    """Whether a training step has been seen."""
    deleted_at: float | None = None
    """When the pod was deleted."""
    deleted: str = ""
    """Its UID."""
    continued: bool = False
    """Whether the other worker processes continued without it."""
    full_again: bool = False
    """Whether training was at full size after that."""
    finished: int | None = None
    """The last step, once rank 0 has printed it."""
    succeeded: bool = False
    failed: str = ""

    @property
    def is_over(self) -> bool:
        return self.failed != "" or (self.succeeded and self.finished is not None)

    @property
    def should_delete_pod(self) -> bool:
        """Whether it is time to delete a pod: halfway through, once all processes train together."""
        together = sum(world == self.full for world in self.worlds.values()) >= self.full
        return self.deleted_at is None and self.training and self.view.step >= self.delete_at and together


def observe(timeline: Timeline, now: float, seen: Observation) -> Timeline:
    """The timeline with one more observation."""
    match seen:
        case PodDeleted():
            detail = f"at step {timeline.view.step}, with {timeline.full} worker processes"
            timeline = dataclasses.replace(timeline, deleted_at=now, deleted=seen.uid)
            return _add(timeline, now, f"worker pod {seen.name} deleted", detail)
        case JobSeen():
            return _job(timeline, now, seen)
        case WorldSeen():
            return _world(timeline, now, seen)
        case StepSeen():
            return _step(timeline, now, seen)
        case Finished():
            view = dataclasses.replace(timeline.view, step=seen.step)
            return dataclasses.replace(timeline, view=view, finished=seen.step)


def _job(timeline: Timeline, now: float, seen: JobSeen) -> Timeline:
    view = dataclasses.replace(
        timeline.view, workers=f"{seen.ready}/{seen.wanted}", world=seen.world or timeline.view.world
    )
    timeline = dataclasses.replace(timeline, view=view)
    if seen.succeeded and not timeline.succeeded:
        timeline = _add(dataclasses.replace(timeline, succeeded=True), now, "job succeeded")
    if seen.failed and not timeline.failed:
        timeline = _add(dataclasses.replace(timeline, failed=seen.failed), now, "job failed", seen.failed)
    return timeline


def _step(timeline: Timeline, now: float, seen: StepSeen) -> Timeline:
    view = dataclasses.replace(timeline.view, step=seen.step, epoch=seen.epoch, loss=seen.loss)
    timeline = dataclasses.replace(timeline, view=view)
    if timeline.training:
        return timeline
    timeline = dataclasses.replace(timeline, training=True)
    return _add(timeline, now, "training", f"{now - timeline.applied_at:.1f} s after apply")


def _world(timeline: Timeline, now: float, seen: WorldSeen) -> Timeline:
    before = timeline.processes.get(seen.pod)
    remains = timeline.deleted_at is not None and seen.pod != timeline.deleted
    timeline = dataclasses.replace(
        timeline,
        processes={**timeline.processes, seen.pod: seen.pid},
        worlds={**timeline.worlds, seen.pod: seen.world},
        # Until all processes of the first round have met, a change restarts them.
        restarted=timeline.restarted + (remains and before is not None and before != seen.pid),
    )
    # Only rank 0 prints steps, so only its lines are in one order with them.
    return _changed(timeline, now, seen) if remains and seen.rank == 0 else timeline


def _changed(timeline: Timeline, now: float, seen: WorldSeen) -> Timeline:
    """Adds a row for a world after the loss of the pod."""
    # The newest printed step may have been interrupted before its commit; it is taken again.
    lost = max(0, timeline.view.step - 1 - seen.step)
    at_full_size = seen.world >= timeline.full
    what = (
        f"the replacement has joined: {seen.world} worker processes"
        if at_full_size
        else f"the other {seen.world} worker processes continue"
    )
    detail = f"{now - (timeline.deleted_at or now):.1f} s after the pod was deleted, after step {seen.step}"
    timeline = dataclasses.replace(
        timeline,
        steps_lost=timeline.steps_lost + lost,
        continued=timeline.continued or not at_full_size,
        full_again=timeline.full_again or at_full_size,
        view=dataclasses.replace(timeline.view, step=seen.step, world=seen.world),
    )
    return _add(timeline, now, what, f"{detail}, {lost} steps lost" if lost else detail)


def _add(timeline: Timeline, now: float, what: str, detail: str = "") -> Timeline:
    return dataclasses.replace(timeline, entries=(*timeline.entries, Entry(now, what, detail)))


def problem(timeline: Timeline) -> str:
    """Why the demo failed; empty if it succeeded."""
    if timeline.failed:
        return f"the job failed: {timeline.failed}"
    if timeline.deleted_at is None:
        return "the job ended before a pod was deleted: delete it earlier (--delete-at)"
    if not timeline.succeeded or timeline.finished is None:
        return "the job did not finish in time"
    if not timeline.continued:
        return "the job ended, but its log does not show that the other worker processes continued without the pod"
    if not timeline.full_again:
        return "the job ended before it was back at full size"
    if timeline.restarted:
        return f"worker processes of the remaining pods restarted: {timeline.restarted}"
    if timeline.steps_lost:
        return f"steps were lost: {timeline.steps_lost}"
    return ""


def table(timeline: Timeline) -> list[tuple[str, str, str]]:
    """The rows of the timeline: seconds since apply, what happened, detail."""
    rows = [("0.0 s", "job applied", "")]
    rows += [(f"{entry.time - timeline.applied_at:.1f} s", entry.what, entry.detail) for entry in timeline.entries]
    loss = "unknown" if timeline.view.loss is None else f"{timeline.view.loss:.4f}"
    steps = "unknown" if timeline.finished is None else str(timeline.finished)
    return [
        *rows,
        ("", "steps, and loss at the end", f"{steps}, {loss}"),
        ("", "steps lost", str(timeline.steps_lost)),
        ("", "other worker processes that restarted", str(timeline.restarted)),
    ]
