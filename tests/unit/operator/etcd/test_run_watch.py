"""Sessions on the store in memory; the client for a real etcd has its own test, and both run in
tests/integration/operator."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from elasticjob_operator.etcd import shared_watch
from elasticjob_operator.etcd.client import AsyncStore
from elasticjob_operator.etcd.limits import TimeBudget
from elasticjob_operator.etcd.recovery_metrics import RecoveryMetrics
from elasticjob_operator.etcd.run_keys import RunKeys
from elasticjob_operator.etcd.run_watches import RunWatches
from elasticjob_operator.planning import ClearRun, EvictMember, PublishSpec, Target
from elasticjob_operator.state import Connectivity, RendezvousView
from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, ProgressValue, SpecValue
from elasticjob_runtime.etcd import Denied, Unavailable

from tests.unit.operator.builders import make_failure, make_outcome, make_plan
from tests.unit.operator.etcd.memory import Memory
from tests.unit.operator.waiting import until

KEY = ("ml", "digits")
TARGET = Target(endpoint="etcd:2379", run_id="u-1")
KEYS = Keys(DEFAULT_PREFIX, "u-1")
SPEC = SpecValue(min=1, max=2, members=["a", "b"])


class Bench:
    def __init__(self) -> None:
        self.memory = Memory()
        self.store = self.memory.store
        self.refuse: Iterator[Exception | None] = itertools.repeat(None)
        self.redacted = 0
        self.on_change: Callable[[], object] = lambda: None
        self.keys: set[tuple[str, str]] = set()
        self.run_watches = RunWatches(self._changed, self._open)

    def _changed(self, key: tuple[str, str]) -> None:
        self.keys.add(key)
        self.redacted += 1
        self.on_change()

    def _open(self, endpoint: str, budget: TimeBudget) -> AsyncStore:
        assert budget
        assert endpoint == "etcd:2379"
        error = next(self.refuse)
        if error is not None:
            raise error
        return self.memory

    @property
    def view(self) -> RendezvousView:
        return self.run_watches.view(KEY)

    async def until(self, condition: Callable[[RendezvousView], object]) -> None:
        await until(lambda: condition(self.view))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.run_watches.close()


async def test_a_run_is_connecting_before_the_first_response(bench: Bench) -> None:
    assert bench.view.connectivity is Connectivity.CONNECTING


async def test_earlier_values_are_read_and_changes_followed(bench: Bench) -> None:
    bench.store.put(KEYS.plan, make_plan(3).to_json())
    bench.store.put(KEYS.failure(3, "b"), make_failure(1, round_number=3, at=5).to_json())
    bench.store.put(KEYS.failure(3, "a"), make_failure(2, round_number=3, at=4).to_json())
    bench.store.put(KEYS.failure(2, "a"), make_failure(0, round_number=2).to_json())
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    assert bench.view.plan == make_plan(3)
    assert bench.view.failure is not None
    assert bench.view.failure.member == "digits-worker-2", "the earliest of the newest round"
    bench.store.put(KEYS.progress, ProgressValue(step=7, round=3).to_json())
    await bench.until(lambda view: view.progress and view.progress.step == 7)
    bench.store.put(KEYS.outcome, make_outcome().to_json())
    await bench.until(lambda view: view.outcome)
    assert bench.redacted >= 3


async def test_one_watch_serves_all_jobs_of_an_etcd_separately(bench: Bench) -> None:
    other = ("ml", "other")
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    bench.store.put(Keys(DEFAULT_PREFIX, "u-2").plan, make_plan(1).to_json())
    await bench.run_watches.follow(other, Target(endpoint="etcd:2379", run_id="u-2"))
    await until(lambda: bench.run_watches.view(other).plan == make_plan(1))
    bench.keys.clear()
    bench.store.put(Keys(DEFAULT_PREFIX, "u-2").plan, make_plan(2).to_json())
    bench.store.put(KEYS.member("a"), "{}")
    await until(lambda: bench.run_watches.view(other).plan == make_plan(2))
    assert bench.keys == {other}
    assert bench.view.empty
    assert bench.memory.watches == 1
    await bench.run_watches.follow(other, None)
    bench.store.put(KEYS.plan, make_plan(5).to_json())
    await bench.until(lambda view: view.plan == make_plan(5))


async def test_a_watch_that_reconnects_misses_nothing_and_is_not_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_watch, "SHORT_SECONDS", 0.0)
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    seen: set[Connectivity] = set()
    bench.on_change = lambda: seen.add(bench.view.connectivity)
    bench.memory.cut()
    bench.store.put(KEYS.plan, make_plan(4).to_json())
    await bench.until(lambda view: view.plan == make_plan(4))
    assert seen == {Connectivity.REACHABLE}
    assert bench.memory.watches == 2


async def test_an_etcd_that_has_become_ready_is_retried_as_often_as_a_new_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Service may refuse connections for a moment after its pod is ready. A short job can end in one long wait."""
    failures: list[int] = []

    def delay(count: int) -> float:
        failures.append(count)
        return 0.001

    monkeypatch.setattr(shared_watch, "_delay", delay)
    bench.memory.fault = Unavailable("connection refused")
    await bench.run_watches.follow(KEY, TARGET)
    await until(lambda: bool(failures) and failures[-1] >= 3)
    failures.clear()
    await bench.run_watches.follow(KEY, dataclasses.replace(TARGET, ready_store_pod="uid-of-etcd"))
    await until(lambda: 0 in failures)
    await until(lambda: failures[-1] >= 2)


async def test_the_view_tells_when_etcd_last_responded(bench: Bench) -> None:
    assert bench.view == RendezvousView()
    await bench.run_watches.follow(KEY, TARGET)
    assert bench.view == RendezvousView()
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    first = bench.view.answered_at
    assert first is not None
    assert abs((first - datetime.datetime.now(datetime.timezone.utc)).total_seconds()) < 60
    bench.memory.fault = Unavailable("connection refused")
    bench.memory.cut()
    await bench.until(lambda view: view.connectivity is Connectivity.UNREACHABLE)
    away = bench.view.answered_at
    assert away is not None
    bench.memory.fault = None
    await bench.until(
        lambda view: view.connectivity is Connectivity.REACHABLE and view.answered_at and view.answered_at > away
    )


async def test_an_outage_keeps_the_last_view_and_recovers(bench: Bench) -> None:
    bench.store.put(KEYS.plan, make_plan(3).to_json())
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    bench.memory.fault = Unavailable("connection refused")
    bench.memory.cut()
    await bench.until(lambda view: view.connectivity is Connectivity.UNREACHABLE)
    assert bench.view.plan == make_plan(3)
    bench.memory.fault = None
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)


async def test_a_failed_write_is_retried_once_etcd_responds(bench: Bench) -> None:
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    bench.memory.refuse_writes = Unavailable("no leader")
    with pytest.raises(Unavailable, match="no leader"):
        await bench.run_watches.execute(KEY, PublishSpec(spec=SPEC, reason="test"))
    before = bench.redacted
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    assert bench.redacted > before, "the job is looked at again"
    bench.memory.refuse_writes = None
    await bench.run_watches.execute(KEY, PublishSpec(spec=SPEC, reason="test"))
    assert bench.view.spec == SPEC


async def test_a_replaced_etcd_is_reconnected_at_once(bench: Bench) -> None:
    await bench.run_watches.follow(KEY, Target(endpoint="etcd:2379", run_id="u-1", ready_store_pod="pod-1"))
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    await bench.run_watches.follow(KEY, Target(endpoint="etcd:2379", run_id="u-1", ready_store_pod=""))
    assert bench.memory.watches == 1
    await bench.run_watches.follow(KEY, Target(endpoint="etcd:2379", run_id="u-1", ready_store_pod="pod-2"))
    await until(lambda: bench.memory.watches == 2)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)


async def test_other_runs_are_ignored(bench: Bench) -> None:
    bench.store.put(Keys(DEFAULT_PREFIX, "u-2").plan, make_plan(9).to_json())
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    assert bench.view.empty


async def test_a_published_spec_shows_at_once_and_its_loss_is_noticed(bench: Bench) -> None:
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    await bench.run_watches.execute(KEY, PublishSpec(spec=SPEC, reason="test"))
    assert bench.view.spec == SPEC
    await bench.run_watches.execute(KEY, ClearRun(reason="test"))
    await bench.until(lambda view: view.spec is None)


async def test_evicting_a_member_keeps_the_others(bench: Bench) -> None:
    for member in ("a", "b"):
        bench.store.put(KEYS.member(member), "{}")
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    await bench.run_watches.execute(KEY, EvictMember(member="a", reason="test"))
    assert bench.store.get(KEYS.member("a")) is None
    assert bench.store.get(KEYS.member("b")) is not None


async def test_a_write_before_the_connection_is_an_error(bench: Bench) -> None:
    bench.refuse = itertools.repeat(Unavailable("unreachable"))
    await bench.run_watches.follow(KEY, TARGET)
    with pytest.raises(Unavailable, match="not connected"):
        await bench.run_watches.execute(KEY, PublishSpec(spec=SPEC, reason="test"))


@pytest.mark.parametrize(
    ("error", "connectivity"),
    [
        (Unavailable("connection refused"), Connectivity.UNREACHABLE),
        (Denied("no such user"), Connectivity.DENIED),
        (ValueError("endpoint has no usable port"), Connectivity.DENIED),
    ],
)
async def test_connection_errors_are_reported_and_retried(
    bench: Bench, error: Exception, connectivity: Connectivity
) -> None:
    bench.refuse = itertools.chain([error, error], itertools.repeat(None))
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is connectivity)
    assert str(error) in bench.view.error
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    assert bench.view.error == ""


async def test_invalid_values_are_treated_as_missing(bench: Bench) -> None:
    bench.store.put(KEYS.plan, "not json")
    bench.store.put(KEYS.outcome, '{"state": "unheard-of", "reason": "x"}')
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    assert (bench.view.plan, bench.view.outcome) == (None, None)


async def test_a_run_no_longer_watched_is_forgotten(bench: Bench) -> None:
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    await bench.run_watches.follow(KEY, None)
    assert bench.view.connectivity is Connectivity.CONNECTING
    await bench.run_watches.execute(KEY, PublishSpec(spec=SPEC, reason="test"))
    assert bench.view.spec is None


async def test_an_invalid_value_of_one_job_affects_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ("ml", "other")
    others = Keys(DEFAULT_PREFIX, "u-2")
    bench.store.put(KEYS.plan, make_plan(1).to_json())
    await bench.run_watches.follow(KEY, TARGET)
    await bench.run_watches.follow(other, Target(endpoint="etcd:2379", run_id="u-2"))
    await until(lambda: bench.run_watches.view(other).connectivity is Connectivity.REACHABLE)
    await bench.until(lambda view: view.plan)
    bench.store.put(KEYS.plan, make_plan(2).to_json().replace('"round":2', '"round":"2"'))
    await bench.until(lambda view: view.unreadable)
    assert "round" in bench.view.unreadable
    assert bench.view.connectivity is Connectivity.REACHABLE
    monkeypatch.setattr(RecoveryMetrics, "update", boom)
    bench.store.put(others.plan, make_plan(3).to_json())
    await until(lambda: bench.run_watches.view(other).plan == make_plan(3), "a fault in the metrics affects no job")
    assert bench.memory.watches == 1


async def test_an_internal_error_in_one_run_affects_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ("ml", "other")
    await bench.run_watches.follow(KEY, TARGET)
    await bench.run_watches.follow(other, Target(endpoint="etcd:2379", run_id="u-2"))
    await until(lambda: bench.run_watches.view(other).connectivity is bench.view.connectivity is Connectivity.REACHABLE)
    real = RunKeys.apply
    monkeypatch.setattr(RunKeys, "apply", lambda self, event: boom() if event.key == KEYS.plan else real(self, event))
    bench.store.put(KEYS.plan, make_plan(1).to_json())
    bench.store.put(Keys(DEFAULT_PREFIX, "u-2").plan, make_plan(3).to_json())
    await until(lambda: bench.run_watches.view(other).plan == make_plan(3))
    await bench.until(lambda view: view.connectivity is Connectivity.UNREACHABLE)
    assert "boom" not in bench.view.error
    assert bench.memory.watches == 1


async def test_continuous_writes_requeue_the_job_at_a_limited_rate(bench: Bench) -> None:
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    bench.redacted = 0
    for step in range(500):
        bench.store.put(KEYS.progress, ProgressValue(step=step, round=1).to_json())
    await bench.until(lambda view: view.progress and view.progress.step == 499)
    assert bench.redacted < 100


def boom(*_: object) -> bool:
    raise TypeError("boom")
