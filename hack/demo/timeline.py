"""The demo's timeline, as pure functions: observations go in; what to show and when to delete a pod come out.

Times are Unix times in seconds.
"""

from __future__ import annotations

import dataclasses

from hack.demo.observations import JobSeen, LineSeen, Observation, PodDeleted

GOOD_ACCURACY = 0.95


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
    group: int = 0
    epoch: int = 0
    step: int = 0
    loss: float | None = None
    accuracy: float | None = None


@dataclasses.dataclass(frozen=True)
class Resuming:
    """The worker processes have loaded a checkpoint, but not trained yet."""

    step: int
    world: int
    lost: int
    """Steps that are trained again."""


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
    high: int = 0
    """Highest step that the current worker group is known to have reached."""
    steps_lost: int = 0
    training: bool = False
    """Whether a training step has been seen."""
    resuming: Resuming | None = None
    """A restart whose first step has not been seen yet."""
    deleted_at: float | None = None
    """When the pod was deleted."""
    resumed: bool = False
    """Whether training resumed after that."""
    full_again: bool = False
    """Whether training resumed at full size after that."""
    finished: bool = False
    """Whether rank 0 reported that all steps are done; the accuracy that follows is the final one."""
    final_accuracy: float | None = None
    succeeded: bool = False
    failed: str = ""

    @property
    def is_over(self) -> bool:
        return self.failed != "" or (self.succeeded and self.final_accuracy is not None)

    @property
    def should_delete_pod(self) -> bool:
        """Whether it is time to delete a pod: halfway through, at full size, once."""
        return (
            self.deleted_at is None
            and self.training
            and self.view.step >= self.delete_at
            and self.view.world == self.full
        )


def observe(timeline: Timeline, now: float, seen: Observation) -> Timeline:
    """The timeline with one more observation."""
    if isinstance(seen, PodDeleted):
        detail = f"at step {timeline.high}, with {timeline.view.world} worker pods"
        return _add(dataclasses.replace(timeline, deleted_at=now), now, f"worker pod {seen.name} deleted", detail)
    if isinstance(seen, JobSeen):
        return _job(timeline, now, seen)
    return _line(timeline, now, seen)


def _job(timeline: Timeline, now: float, seen: JobSeen) -> Timeline:
    view = dataclasses.replace(
        timeline.view,
        workers=f"{seen.ready}/{seen.wanted}",
        group=seen.group,
        world=seen.world or timeline.view.world,
        accuracy=timeline.view.accuracy
        if timeline.view.accuracy is not None
        else seen.accuracy,  # the log is ahead of the status
    )
    # The status is up to a second old. It may report more steps than the last line, but the view never goes back.
    same_group = seen.group == timeline.view.group
    high = max(timeline.high, seen.step or 0) if same_group else timeline.high
    timeline = dataclasses.replace(timeline, view=dataclasses.replace(view, step=max(view.step, high)), high=high)
    if seen.step:
        timeline = _first_step(timeline, now)
    if seen.succeeded and not timeline.succeeded:
        timeline = _add(dataclasses.replace(timeline, succeeded=True), now, "job succeeded")
    if seen.failed and not timeline.failed:
        timeline = _add(dataclasses.replace(timeline, failed=seen.failed), now, "job failed", seen.failed)
    return timeline


def _line(timeline: Timeline, now: float, seen: LineSeen) -> Timeline:
    if seen.accuracy is not None:
        view = dataclasses.replace(timeline.view, accuracy=seen.accuracy)
        return dataclasses.replace(timeline, view=view, final_accuracy=seen.accuracy if timeline.finished else None)
    if seen.step is None or seen.world is None or seen.epoch is None:
        return timeline
    loss = seen.loss if seen.loss is not None else timeline.view.loss
    view = dataclasses.replace(timeline.view, step=seen.step, epoch=seen.epoch, world=seen.world, loss=loss)
    timeline = dataclasses.replace(timeline, view=view)
    if seen.word == "resumed":
        already_lost = timeline.resuming.lost if timeline.resuming else 0
        lost = max(0, timeline.high - seen.step)
        resuming = Resuming(seen.step, seen.world, already_lost + lost)
        return dataclasses.replace(timeline, high=seen.step, steps_lost=timeline.steps_lost + lost, resuming=resuming)
    if not seen.word:
        timeline = _resumed(_first_step(timeline, now), now, seen.step)
    return dataclasses.replace(
        timeline, high=max(timeline.high, seen.step), finished=timeline.finished or seen.word == "finished"
    )


def _first_step(timeline: Timeline, now: float) -> Timeline:
    if timeline.training:
        return timeline
    return _add(
        dataclasses.replace(timeline, training=True), now, "training", f"{now - timeline.applied_at:.1f} s after apply"
    )


def _resumed(timeline: Timeline, now: float, step: int) -> Timeline:
    """Adds a row for the first step after a restart."""
    resuming = timeline.resuming
    if resuming is None or step <= resuming.step:
        return timeline
    at_full_size = resuming.world >= timeline.full
    what = (
        f"at full size: {resuming.world} worker pods"
        if at_full_size
        else f"with {resuming.world} of {timeline.full} worker pods"
    )
    after = "" if timeline.deleted_at is None else f"{now - timeline.deleted_at:.1f} s after the pod was deleted, "
    detail = f"{after}from step {resuming.step}, {resuming.lost} steps lost"
    lost_a_pod = timeline.deleted_at is not None
    timeline = dataclasses.replace(
        timeline,
        resuming=None,
        resumed=timeline.resumed or lost_a_pod,
        full_again=timeline.full_again or (lost_a_pod and at_full_size),
    )
    return _add(timeline, now, f"training resumed {what}", detail)


def _add(timeline: Timeline, now: float, what: str, detail: str = "") -> Timeline:
    return dataclasses.replace(timeline, entries=(*timeline.entries, Entry(now, what, detail)))


def problem(timeline: Timeline) -> str:
    """Why the demo failed; empty if it succeeded."""
    if timeline.failed:
        return f"the job failed: {timeline.failed}"
    if timeline.deleted_at is None:
        return (
            "the job ended before a pod was deleted: train for longer (--steps in the manifest), or delete the pod "
            "earlier (--delete-at)"
        )
    if not timeline.succeeded or timeline.final_accuracy is None:
        return "the job did not finish in time"
    if not timeline.resumed:
        return "the job ended, but its log does not show that training resumed after the pod was deleted"
    if not timeline.full_again:
        return "the job ended before it was back at full size"
    if timeline.final_accuracy < GOOD_ACCURACY:
        return f"accuracy {timeline.final_accuracy:.4f} is below {GOOD_ACCURACY}"
    return ""


def table(timeline: Timeline) -> list[tuple[str, str, str]]:
    """The rows of the timeline: seconds since apply, what happened, detail."""
    rows = [("0.0 s", "job applied", "")]
    rows += [(f"{entry.time - timeline.applied_at:.1f} s", entry.what, entry.detail) for entry in timeline.entries]
    accuracy = f"{timeline.final_accuracy:.4f}" if timeline.final_accuracy is not None else "unknown"
    return [*rows, ("", "accuracy on the test images", accuracy), ("", "steps lost in total", str(timeline.steps_lost))]


def one_line(view: View) -> str:
    """The view as one line.

    >>> one_line(View(workers="3/4", world=3, group=2, epoch=5, step=130, loss=0.2))
    'worker pods 3/4  world size 3  epoch 5  step 130  loss 0.2000'
    >>> one_line(View(workers="1/4"))
    'worker pods 1/4'
    """
    parts = [f"worker pods {view.workers or '-'}"]
    if view.world:
        parts += [f"world size {view.world}", f"epoch {view.epoch}", f"step {view.step}"]
    if view.loss is not None:
        parts.append(f"loss {view.loss:.4f}")
    if view.accuracy is not None:
        parts.append(f"accuracy {view.accuracy:.4f}")
    return "  ".join(parts)


def is_news(before: View, after: View) -> bool:
    """Whether to print the view without a terminal: on any change of what `one_line` shows, except step and loss."""

    def news(view: View) -> View:
        return dataclasses.replace(view, step=0, loss=None, group=0)

    return news(before) != news(after)
