"""What the demo makes of what it sees: pure, no cluster and no clock. Observations go in; what to show, and what to do,
comes out.

Times are seconds since the epoch.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

GOOD_ACCURACY = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSeen:
    """The job's status as the API server has it."""

    ready: int = 0
    wanted: int = 0
    world: int = 0
    group: int = 0
    """Number of the worker group (`status.round`)."""
    step: int | None = None
    accuracy: float | None = None
    succeeded: bool = False
    failed: str = ""
    """Why the job failed for good; empty while it has not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSeen:
    """A line that rank 0 wrote: where the training is."""

    word: str = ""
    """started, resumed, finished, or empty for an ordinary step."""
    step: int | None = None
    epoch: int | None = None
    world: int | None = None
    loss: float | None = None
    accuracy: float | None = None


@dataclasses.dataclass(frozen=True)
class PodDeleted:
    """The demo itself has deleted a worker pod."""

    name: str


Observation = JobSeen | LineSeen | PodDeleted


@dataclasses.dataclass(frozen=True)
class Moment:
    """One line of the story."""

    time: float
    what: str
    detail: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """What the terminal shows: the newest of everything."""

    workers: str = ""
    world: int = 0
    group: int = 0
    epoch: int = 0
    step: int = 0
    loss: float | None = None
    accuracy: float | None = None


@dataclasses.dataclass(frozen=True)
class Resuming:
    """The workers have read a checkpoint and are about to train."""

    step: int
    world: int
    lost: int
    """Steps that are done again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Story:
    """All that has happened so far."""

    applied_at: float
    full: int
    """Workers at full size."""
    lose_at: int
    """Step at which a pod is deleted."""
    view: View = View()
    moments: tuple[Moment, ...] = ()
    high: int = 0
    """Highest step that the current worker group has reached, as far as seen."""
    steps_lost: int = 0
    training: bool = False
    """Whether a training step has been seen."""
    resuming: Resuming | None = None
    """A restart whose first step has not been seen yet."""
    lost_at: float | None = None
    """When a pod was deleted."""
    resumed: bool = False
    """Whether the training went on after that."""
    full_again: bool = False
    """Whether it did so at full size."""
    finished: bool = False
    """Whether rank 0 said that all steps are done; an accuracy after that is the final one."""
    final_accuracy: float | None = None
    succeeded: bool = False
    failed: str = ""

    @property
    def is_over(self) -> bool:
        return self.failed != "" or (self.succeeded and self.final_accuracy is not None)

    @property
    def lose_a_pod_now(self) -> bool:
        """Half-way, all workers are training, and none has been deleted yet."""
        return (
            self.lost_at is None and self.training and self.view.step >= self.lose_at and self.view.world == self.full
        )


_STEP = re.compile(
    r"(?:\b(started|resumed|finished) )?\bstep=(\d+) epoch=(\d+) world=(\d+)(?: loss=([0-9.eE+-]+|nan|inf))?"
)
_ACCURACY = re.compile(r"\baccuracy=([0-9.]+)")


def parse_line(text: str) -> LineSeen | None:
    """A line of the example's log, whatever the launcher put before it; None where it is none of those.

    >>> parse_line("[rank0]: step=120 epoch=5 world=4 loss=0.1234")
    LineSeen(word='', step=120, epoch=5, world=4, loss=0.1234, accuracy=None)
    """
    found = _STEP.search(text)
    if found:
        word, step, epoch, world, loss = found.groups()
        return LineSeen(
            word=word or "", step=int(step), epoch=int(epoch), world=int(world), loss=float(loss) if loss else None
        )
    found = _ACCURACY.search(text)
    return LineSeen(accuracy=float(found[1])) if found else None


def parse_job(job: dict[str, Any]) -> JobSeen:
    """An ElasticJob as kubectl has it."""
    status = job.get("status", {})
    progress = status.get("progress", {})
    conditions = {each["type"]: each for each in status.get("conditions", []) if each["status"] == "True"}
    failed = conditions.get("Failed")
    accuracy = progress.get("metrics", {}).get("accuracy")
    return JobSeen(
        ready=status.get("readyReplicas", 0),
        wanted=job["spec"]["workers"].get("replicas", 1),
        world=status.get("worldSize", 0),
        group=status.get("round", 0),
        step=progress.get("step"),
        accuracy=float(accuracy) if accuracy is not None else None,
        succeeded="Succeeded" in conditions,
        failed=f"{failed.get('reason', '')}: {failed.get('message', '')}" if failed else "",
    )


def observe(story: Story, now: float, seen: Observation) -> Story:
    """The story with one observation more."""
    if isinstance(seen, PodDeleted):
        detail = f"at step {story.high}, with {story.view.world} workers"
        return _tell(dataclasses.replace(story, lost_at=now), now, f"worker pod {seen.name} deleted", detail)
    if isinstance(seen, JobSeen):
        return _job(story, now, seen)
    return _line(story, now, seen)


def _job(story: Story, now: float, seen: JobSeen) -> Story:
    view = dataclasses.replace(
        story.view,
        workers=f"{seen.ready}/{seen.wanted}",
        group=seen.group,
        world=seen.world or story.view.world,
        accuracy=story.view.accuracy if story.view.accuracy is not None else seen.accuracy,  # the log knows it sooner
    )
    # A status is up to a second old: it tells of more steps than the last line did, but never takes the view back.
    same_group = seen.group == story.view.group
    high = max(story.high, seen.step or 0) if same_group else story.high
    story = dataclasses.replace(story, view=dataclasses.replace(view, step=max(view.step, high)), high=high)
    if seen.step:
        story = _first_step(story, now)
    if seen.succeeded and not story.succeeded:
        story = _tell(dataclasses.replace(story, succeeded=True), now, "job succeeded")
    if seen.failed and not story.failed:
        story = _tell(dataclasses.replace(story, failed=seen.failed), now, "job failed", seen.failed)
    return story


def _line(story: Story, now: float, seen: LineSeen) -> Story:
    if seen.accuracy is not None:
        view = dataclasses.replace(story.view, accuracy=seen.accuracy)
        return dataclasses.replace(story, view=view, final_accuracy=seen.accuracy if story.finished else None)
    if seen.step is None or seen.world is None or seen.epoch is None:
        return story
    loss = seen.loss if seen.loss is not None else story.view.loss
    view = dataclasses.replace(story.view, step=seen.step, epoch=seen.epoch, world=seen.world, loss=loss)
    story = dataclasses.replace(story, view=view)
    if seen.word == "resumed":
        already_lost = story.resuming.lost if story.resuming else 0
        lost = max(0, story.high - seen.step)
        resuming = Resuming(seen.step, seen.world, already_lost + lost)
        return dataclasses.replace(story, high=seen.step, steps_lost=story.steps_lost + lost, resuming=resuming)
    if not seen.word:
        story = _goes_on(_first_step(story, now), now, seen.step)
    return dataclasses.replace(
        story, high=max(story.high, seen.step), finished=story.finished or seen.word == "finished"
    )


def _first_step(story: Story, now: float) -> Story:
    if story.training:
        return story
    return _tell(
        dataclasses.replace(story, training=True), now, "training", f"{now - story.applied_at:.1f} s after apply"
    )


def _goes_on(story: Story, now: float, step: int) -> Story:
    """The first step after a restart."""
    resuming = story.resuming
    if resuming is None or step <= resuming.step:
        return story
    at_full_size = resuming.world >= story.full
    what = (
        f"at full size: {resuming.world} workers" if at_full_size else f"with {resuming.world} of {story.full} workers"
    )
    after = "" if story.lost_at is None else f"{now - story.lost_at:.1f} s after the pod was deleted, "
    detail = f"{after}from step {resuming.step}, steps lost: {resuming.lost}"
    lost_a_pod = story.lost_at is not None
    story = dataclasses.replace(
        story,
        resuming=None,
        resumed=story.resumed or lost_a_pod,
        full_again=story.full_again or (lost_a_pod and at_full_size),
    )
    return _tell(story, now, f"training goes on {what}", detail)


def _tell(story: Story, now: float, what: str, detail: str = "") -> Story:
    return dataclasses.replace(story, moments=(*story.moments, Moment(now, what, detail)))


def complaint(story: Story) -> str:
    """What is wrong with the end of the story; empty where all is well."""
    if story.failed:
        return f"the job failed: {story.failed}"
    if story.lost_at is None:
        return (
            "the job ended before a pod was deleted: let it train longer (--steps in its manifest), or delete "
            "earlier (--lose-at)"
        )
    if not story.succeeded or story.final_accuracy is None:
        return "the job did not come to its end in time"
    if not story.resumed:
        return "the job ended, but its log does not show that the training went on after the pod was lost"
    if not story.full_again:
        return "the job ended before it was back at full size"
    if story.final_accuracy < GOOD_ACCURACY:
        return f"accuracy {story.final_accuracy:.4f} is below {GOOD_ACCURACY}"
    return ""


def table(story: Story) -> list[tuple[str, str, str]]:
    """What happened when: seconds since apply, what, detail."""
    rows = [("0.0 s", "job applied", "")]
    rows += [(f"{moment.time - story.applied_at:.1f} s", moment.what, moment.detail) for moment in story.moments]
    accuracy = f"{story.final_accuracy:.4f}" if story.final_accuracy is not None else "unknown"
    return [*rows, ("", "accuracy on the test images", accuracy), ("", "steps lost in all", str(story.steps_lost))]


def one_line(view: View) -> str:
    """The view in one line.

    >>> one_line(View(workers="3/4", world=3, group=2, epoch=5, step=130, loss=0.2))
    'workers 3/4  world 3  epoch 5  step 130  loss 0.2000'
    """
    parts = [f"workers {view.workers or '-'}", f"world {view.world}", f"epoch {view.epoch}", f"step {view.step}"]
    if view.loss is not None:
        parts.append(f"loss {view.loss:.4f}")
    if view.accuracy is not None:
        parts.append(f"accuracy {view.accuracy:.4f}")
    return "  ".join(parts)


def is_news(before: View, after: View) -> bool:
    """Whether a view is worth a line of its own where lines cannot move: everything that `one_line` shows but step and
    loss is."""

    def news(view: View) -> View:
        return dataclasses.replace(view, step=0, loss=None, group=0)

    return news(before) != news(after)
