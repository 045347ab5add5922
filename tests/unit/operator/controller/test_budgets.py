"""What one job may cost the operator: time at its etcd, tries at the API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from elasticjob_operator.controller import JobCache, ProgressWriter, Reconciler, WorkQueue
from elasticjob_operator.controller.reconciler import ETCD_WRITES, once_pods_are_gone, retry_delay
from elasticjob_operator.controller.status_throttle import MAX_CONFLICT_SECONDS, conflict_delay
from elasticjob_operator.planning import EvictMember
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Rejection
from elasticjob_runtime.etcd import StoreError
from prometheus_client import REGISTRY

from tests.unit.operator.builders import NOW, at

KEY = ("ml", "digits")


class RunWatches:
    """An etcd that answers, or does not."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers
        self.asked = 0
        self.under_way = 0
        self.most = 0

    async def execute(self, *_: Any) -> None:
        self.asked += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        if not self._answers:
            raise StoreError("no answer")


def reconciler(run_watches: RunWatches) -> Reconciler:
    jobs, queue = JobCache(), WorkQueue[tuple[str, str]]()
    progress = ProgressWriter(Settings(), jobs, queue, None, None)  # type: ignore[arg-type]
    return Reconciler(Settings(), jobs, None, run_watches, None, queue, progress)  # type: ignore[arg-type]


async def test_a_frozen_etcd_is_waited_for_once_not_per_dead_member() -> None:
    run_watches = RunWatches(answers=False)
    await reconciler(run_watches)._write_rendezvous(
        KEY, [EvictMember(member=f"w-{number}", reason="lost") for number in range(100)]
    )
    assert run_watches.asked == ETCD_WRITES, "all at the same time"


async def test_all_dead_members_are_evicted_concurrently() -> None:
    run_watches = RunWatches(answers=True)
    await reconciler(run_watches)._write_rendezvous(
        KEY, [EvictMember(member=f"w-{number}", reason="lost") for number in range(100)]
    )
    assert (run_watches.asked, run_watches.most) == (100, ETCD_WRITES)


async def test_a_failed_write_to_etcd_is_counted() -> None:
    before = REGISTRY.get_sample_value("elasticjob_etcd_write_errors_total") or 0.0
    await reconciler(RunWatches(answers=False))._write_rendezvous(KEY, [EvictMember(member="w-1", reason="lost")])
    assert REGISTRY.get_sample_value("elasticjob_etcd_write_errors_total") == before + 1


@pytest.mark.parametrize(
    ("rejections", "longest", "seconds"),
    [(1, 60, 1), (2, 60, 2), (5, 60, 16), (7, 60, 60), (1000, 60, 60), (9, 30, 30)],
)
def test_each_rejection_delays_the_next_retry_further(rejections: int, longest: float, seconds: float) -> None:
    assert retry_delay(rejections, longest=longest) == seconds


@pytest.mark.parametrize(("conflicts", "seconds"), [(0, 0.0), (1, 0.05), (3, 0.2), (1000, MAX_CONFLICT_SECONDS)])
def test_conflicts_are_retried_at_once_and_then_with_growing_delays(conflicts: int, seconds: float) -> None:
    assert conflict_delay(conflicts) == pytest.approx(seconds)


def test_a_replacement_is_created_as_soon_as_its_predecessor_has_left_the_quota() -> None:
    rejected = Rejection(kinds=frozenset({"Pod"}), message="exceeded quota", retry_at=at(60))
    assert once_pods_are_gone(rejected, set(), NOW) == rejected
    freed = once_pods_are_gone(rejected, {"digits-worker-0-abcde"}, NOW)
    assert freed is not None
    assert freed.retry_at == NOW
    assert once_pods_are_gone(None, {"digits-worker-0-abcde"}, NOW) is None
