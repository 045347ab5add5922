from __future__ import annotations

import dataclasses

from elasticjob_operator import metrics
from elasticjob_operator.etcd.recovery_metrics import RecoveryMetrics
from elasticjob_operator.state import Connectivity, RendezvousView
from elasticjob_runtime.contract import PlanReason, PlanValue, ProgressValue, SpecValue
from prometheus_client import REGISTRY

from tests.unit.operator.builders import make_plan

VIEW = RendezvousView(connectivity=Connectivity.REACHABLE)


def plan(round_number: int, *, size: int = 2, caused: float = 0.0, created: float = 0.0) -> PlanValue:
    return dataclasses.replace(
        make_plan(round_number), size=size, caused_at=caused, created_at=created, reason=PlanReason.WORKER_FAILED
    )


def progress(step: int, round_number: int, at: float) -> ProgressValue:
    return ProgressValue(step=step, round=round_number, updated_at=at)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Bench:
    def __init__(self, first: RendezvousView = VIEW) -> None:
        self.meter = RecoveryMetrics()
        self.view = RendezvousView()
        self.before = self.figures()
        self.update(first)

    def update(self, view: RendezvousView, now: float = 0.0) -> None:
        self.meter.update(self.view, view, now)
        self.view = view

    @staticmethod
    def figures() -> dict[str, float]:
        reason = {"reason": "WorkerFailed"}
        return {
            "resumed": value("elasticjob_time_to_resume_seconds_count", **reason),
            "resume": value("elasticjob_time_to_resume_seconds_sum", **reason),
            "agreed": value("elasticjob_rendezvous_seconds_sum", **reason),
            "lost": value("elasticjob_steps_lost_total", **reason),
            "resized": value("elasticjob_resize_seconds_count"),
            "resize": value("elasticjob_resize_seconds_sum"),
        }

    @property
    def spent(self) -> dict[str, float]:
        return {
            name: round(now - self.before[name], 6) for name, now in self.figures().items() if now != self.before[name]
        }


def test_a_restart_is_measured_from_its_cause_to_the_first_step() -> None:
    bench = Bench(dataclasses.replace(VIEW, plan=plan(1), progress=progress(100, 1, 10)))
    second = plan(2, caused=20.0, created=20.3)
    bench.update(dataclasses.replace(VIEW, plan=second, progress=progress(110, 1, 19)))
    bench.update(dataclasses.replace(VIEW, plan=second, progress=progress(101, 2, 20.8)))
    bench.update(dataclasses.replace(VIEW, plan=second, progress=progress(102, 2, 21.8)))
    assert bench.spent == {"resumed": 1, "resume": 0.8, "agreed": 0.3, "lost": 10}


def test_changes_before_the_operator_connected_are_not_counted() -> None:
    bench = Bench(dataclasses.replace(VIEW, plan=plan(3, caused=5, created=6)))
    bench.update(dataclasses.replace(VIEW, plan=plan(3, caused=5, created=6), progress=progress(1, 3, 7)))
    assert bench.spent == {}


def test_a_resize_is_measured_until_the_group_has_its_new_size() -> None:
    def wanted(size: int) -> SpecValue:
        return SpecValue(min=1, max=8, wanted=size)

    bench = Bench(dataclasses.replace(VIEW, plan=plan(1, size=2), spec=wanted(2)))
    bench.update(dataclasses.replace(VIEW, plan=plan(1, size=2), spec=wanted(4)), now=10)
    bench.update(dataclasses.replace(VIEW, plan=plan(2, size=3), spec=wanted(4)), now=11)
    bench.update(dataclasses.replace(VIEW, plan=plan(3, size=4), spec=wanted(4)), now=12.5)
    assert bench.spent == {"resized": 1, "resize": 2.5}


def test_what_a_script_invents_stays_within_limits() -> None:
    bench = Bench(dataclasses.replace(VIEW, plan=plan(1), progress=progress(2**60, 1, 10)))
    second = plan(2, caused=1.0, created=2.0**40)
    bench.update(dataclasses.replace(VIEW, plan=second, progress=progress(0, 2, 2.0**40)))
    assert bench.spent == {
        "resumed": 1,
        "resume": metrics.MOST_SECONDS,
        "agreed": metrics.MOST_SECONDS,
        "lost": metrics.MOST_STEPS,
    }
