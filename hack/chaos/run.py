"""One fault on one job: the job trains, the fault is injected and undone, the job recovers, the ledger is audited."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from hack.chaos import audit
from hack.chaos.faults import Fault
from hack.chaos.job import ChaosJob, Layout, Seen
from hack.chaos.leftovers import leftovers
from hack.chaos.scene import Scene
from hack.cluster import ClusterError
from hack.drivers import ClusterDriver, KubeError, collect_logs
from hack.images.recipe import ROOT
from hack.support import within

LOGS = ROOT / ".cluster" / "chaos"
HEALTHY_WITHIN = 180.0
"""Seconds for the job to recover."""
STATUS_WITHIN = 20.0
"""Seconds for the status to catch up."""
OPERATOR_KILLED_AFTER = 1.0
"""Seconds after the start of the fault."""


@dataclass(kw_only=True)
class Result:
    """What one fault did to one job. `broken`: the broken promises, in words."""

    fault: str
    with_operator_killed: bool = False
    broken: list[str] = field(default_factory=list)
    pause: float = 0.0
    """Longest time in seconds without a completed step."""
    redone: int = 0
    """Steps trained again."""
    together: float = 0.0
    """Seconds for which two groups trained."""
    continued: float = 0.0
    """Seconds for which the previous group kept training after the start of the fault."""
    extra_commits: int = 0
    """Checkpoints that an older group committed while a newer one trained."""
    restarts: int = 0
    deleted: int = 0
    """Pods replaced."""


class Stage:
    """A context manager with at most one job at a time, which is kept for the next fault if its layout fits."""

    def __init__(self, driver: ClusterDriver) -> None:
        self._driver = driver
        self._stack = ExitStack()
        self._scene: Scene | None = None
        self.left: list[str] = []
        """Leftovers of deleted jobs, in words."""

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def scene(self, layout: Layout) -> Scene:
        """A healthy job of this layout. Raises AssertionError if there is none in time."""
        scene = self._scene
        if scene is not None and (scene.job.layout != layout or scene.misplaced() or scene.problem()):
            self.end()
            scene = None
        if scene is None:
            scene = self._new(layout)
        scene.arrange()
        wrong = scene.becomes_healthy(HEALTHY_WITHIN)
        assert not wrong, f"the job is not healthy before the fault: {wrong}"
        return scene

    def end(self) -> None:
        """Lets a healthy job succeed, deletes it, and records what it leaves behind."""
        if self._scene is None:
            return
        job = self._scene.job
        if not self._scene.problem():
            job.finish(self._scene.newest().done[-1][0] + 50)
            if not within(90, lambda: job.history[-1].condition("Succeeded").get("status") == "True"):
                self.left.append(f"{job.name} did not succeed when all steps were done")
        job.delete()
        found: list[str] = []

        def nothing() -> bool:
            with contextlib.suppress(KubeError, ClusterError):
                found[:] = leftovers(self._driver, job.name, job.folder / "checkpoints")
            return not found

        if not within(90, nothing):
            self.left += [f"{job.name}: {item}" for item in found]
        self._drop()

    def _new(self, layout: Layout) -> Scene:
        job = self._stack.enter_context(ChaosJob(self._driver, f"chaos-{secrets.token_hex(3)}", layout))
        self._scene = Scene(self._driver, job)
        wrong = self._scene.becomes_healthy(HEALTHY_WITHIN)
        assert not wrong, f"{job.name} does not train: {wrong}"
        return self._scene

    def _drop(self) -> None:
        self._scene = None
        self._stack.close()


def run_fault(stage: Stage, driver: ClusterDriver, fault: Fault, kill_operator: bool = False) -> Result:
    """Reports failures of the job or the cluster in the result, and never raises them. Saves logs below LOGS if a
    promise is broken."""
    result = Result(fault=fault.name, with_operator_killed=kill_operator)
    try:
        scene = stage.scene(fault.layout)
    except (AssertionError, KubeError, ClusterError) as error:
        result.broken.append(f"not run: {error}")
        _keep_logs(driver, fault.name)
        stage.end()
        return result
    before = _Before(scene)
    try:
        with fault.inject(scene), _operator_killed(scene, kill_operator):
            time.sleep(fault.lasts)
        if fault.expect.new_group and not within(
            HEALTHY_WITHIN, lambda: any(group.began >= before.at for group in scene.groups())
        ):
            result.broken.append(f"no new group began within {HEALTHY_WITHIN:g} s")
        wrong = scene.becomes_healthy(HEALTHY_WITHIN)
        result.broken += [f"not healthy within {HEALTHY_WITHIN:g} s: {wrong}"] if wrong else []
        time.sleep(fault.settle)
        judge(fault, scene, before, result)
    except (KubeError, ClusterError, LookupError, AssertionError) as error:
        result.broken.append(f"not completed: {error}")
    if result.broken:
        _keep_logs(driver, fault.name)
        stage.end()  # so that its problems are not blamed on the next fault
    return result


class _Before:
    """The state of the job when the fault began."""

    def __init__(self, scene: Scene) -> None:
        self.at = time.monotonic()
        self.groups = scene.groups()
        self.restarts = scene.job.restarts
        self.pods = {pod["metadata"]["uid"] for pod in scene.job.pods()}
        self.seen = len(scene.job.history)


def judge(fault: Fault, scene: Scene, before: _Before, result: Result) -> None:
    """Fills in the result. Gives the status some time to catch up."""
    expect = fault.expect
    least, most = expect.restarts
    within(
        STATUS_WITHIN,
        lambda: scene.job.restarts - before.restarts >= least and not _wrong_statuses(fault, scene, before),
    )
    now = time.monotonic()
    groups = scene.groups()
    known = {(finding.kind, finding.text) for finding in audit.audit(before.groups)}
    limits = audit.Limits(together=expect.together)
    result.broken += [
        str(item)
        for item in audit.audit(groups, limits)
        if item.at >= before.at and (item.kind, item.text) not in known
    ]
    result.broken += _wrong_statuses(fault, scene, before)
    old = {group.token for group in before.groups}
    result.continued = max([0.0, *(group.last_done - before.at for group in groups if group.token in old)])
    if expect.ends_within is not None and result.continued > expect.ends_within:
        result.broken.append(
            f"the earlier group continued for {result.continued:.0f} s, not {expect.ends_within:g} s at most"
        )
    new = [group for group in groups if group.began >= before.at]
    if expect.new_group is False and new:
        result.broken.append(f"training was interrupted: {len(new)} new groups")
    result.restarts = scene.job.restarts - before.restarts
    if not least <= result.restarts <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        result.broken.append(
            f"{result.restarts} restarts of the budget, not {wanted}; lastFailure {scene.job.status.get('lastFailure')}"
        )
    result.deleted = len(before.pods - {pod["metadata"]["uid"] for pod in scene.job.pods()})
    if expect.same_pods and result.deleted:
        result.broken.append(f"{result.deleted} healthy pods were deleted")
    result.pause = audit.longest_pause(groups, before.at, now)
    if expect.pause_within is not None and result.pause > expect.pause_within:
        result.broken.append(f"{result.pause:.1f} s without a step, not {expect.pause_within:g} s at most")
    result.redone = audit.steps_redone(groups, before.at)
    for overlap in audit.overlaps(groups):
        if overlap.newer.began >= before.at:
            result.together = max(result.together, overlap.seconds)
            result.extra_commits += overlap.commits


def _wrong_statuses(fault: Fault, scene: Scene, before: _Before) -> list[str]:
    seen: Sequence[Seen] = scene.job.history[max(0, before.seen - 1) :]
    return [wrong for check in fault.expect.status if (wrong := check(seen))]


@contextlib.contextmanager
def _operator_killed(scene: Scene, wanted: bool) -> Iterator[None]:
    if wanted:
        time.sleep(OPERATOR_KILLED_AFTER)
        with contextlib.suppress(KubeError):  # the API server may be the target of the fault
            scene.kill_operator()
    yield


def _keep_logs(driver: ClusterDriver, name: str) -> None:
    collect_logs(driver, LOGS / f"{time.strftime('%H%M%S')}-{name}")
