"""Runs whose etcd fails, or whose values are invalid: the last view is kept, and no other run is affected."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from elasticjob_operator.etcd import shared_watch
from elasticjob_operator.etcd.recovery_metrics import RecoveryMetrics
from elasticjob_operator.etcd.run_keys import RunKeys
from elasticjob_operator.planning import PublishSpec, Target
from elasticjob_operator.state import Connectivity
from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys
from elasticjob_runtime.etcd import Denied, Unavailable

from tests.unit.operator.builders import make_plan
from tests.unit.operator.etcd.watch_bench import KEY, KEYS, SPEC, TARGET, Bench
from tests.unit.operator.waiting import until


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
    await until(lambda: bench.memory.watches == 2)
    assert seen == {Connectivity.REACHABLE}


async def test_an_etcd_that_has_become_ready_is_retried_as_often_as_a_new_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Service may reject connections briefly after its pod is ready. A short job can end in one long wait."""
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
    bench.memory.write_error = Unavailable("no leader")
    with pytest.raises(Unavailable, match="no leader"):
        await bench.run_watches.execute(KEY, PublishSpec(spec=SPEC, reason="test"))
    before = bench.changes
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    assert bench.changes > before, "the job is requeued"
    bench.memory.write_error = None
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


async def test_a_write_before_the_connection_is_an_error(bench: Bench) -> None:
    bench.connect_errors = itertools.repeat(Unavailable("no route to host"))
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
    bench.connect_errors = itertools.chain([error, error], itertools.repeat(None))
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
    await until(lambda: bench.run_watches.view(other).plan == make_plan(3), "a failure of the metrics affects no job")
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


def boom(*_: object) -> bool:
    raise TypeError("boom")
