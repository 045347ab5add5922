"""Recovery metrics of a run, from what its agents report: time until training resumes after a change of the worker
group, and steps repeated.

Computed from the difference of two views; what was there when the operator connected is not counted.
"""

from __future__ import annotations

from elasticjob_runtime.contract import PlanValue, ProgressValue

from elasticjob_operator import metrics
from elasticjob_operator.state import Connectivity, RendezvousView


class RecoveryMetrics:
    """Of one run. `now`: Unix time, s."""

    def __init__(self) -> None:
        self._resumed = 0
        """Newest round whose training was seen to resume, or that was there from the start."""
        self._step = -1
        """Highest step reported."""
        self._wanted_at: float | None = None
        """Since when the requested number of workers differs from the actual one."""

    def update(self, before: RendezvousView, after: RendezvousView, now: float) -> None:
        if before.connectivity is Connectivity.CONNECTING:
            self._begin(after)
            return
        if after.plan is not None and (before.plan is None or after.plan.round > before.plan.round):
            self._on_plan(after.plan)
        if after.progress is not None and after.progress != before.progress:
            self._on_progress(after.plan, after.progress)
        self._on_sizes(before, after, now)

    def _begin(self, view: RendezvousView) -> None:
        self._resumed = view.plan.round if view.plan else 0
        self._step = view.progress.step if view.progress else -1

    def _on_plan(self, plan: PlanValue) -> None:
        if plan.caused_at and plan.created_at:
            metrics.RENDEZVOUS.labels(plan.reason.value).observe(_bounded(plan.created_at - plan.caused_at))

    def _on_progress(self, plan: PlanValue | None, progress: ProgressValue) -> None:
        if plan is not None and progress.round == plan.round > self._resumed:
            self._resumed = plan.round
            if plan.caused_at and progress.updated_at:
                metrics.RESUME.labels(plan.reason.value).observe(_bounded(progress.updated_at - plan.caused_at))
            if 0 <= progress.step <= self._step:
                lost = min(self._step - progress.step + 1, metrics.MOST_STEPS)
                metrics.STEPS_LOST.labels(plan.reason.value).inc(lost)
        self._step = max(self._step, progress.step)

    def _on_sizes(self, before: RendezvousView, after: RendezvousView, now: float) -> None:
        if after.spec is None or after.plan is None:
            return
        if before.spec is not None and after.spec.wanted not in (before.spec.wanted, after.plan.size):
            self._wanted_at = now
        elif self._wanted_at is not None and after.spec.wanted == after.plan.size:
            metrics.RESIZE.observe(now - self._wanted_at)
            self._wanted_at = None


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), metrics.MOST_SECONDS)
