"""RunWatches on the store in memory. The client for a real etcd has its own test, and both run in
tests/integration/operator."""

from __future__ import annotations

import datetime

from elasticjob_operator.planning import ClearRun, EvictMember, PublishSpec, Target
from elasticjob_operator.state import Connectivity, RendezvousView
from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, ProgressValue
from elasticjob_runtime.etcd import Unavailable

from tests.unit.operator.builders import make_failure, make_outcome, make_plan
from tests.unit.operator.etcd.watch_bench import KEY, KEYS, SPEC, TARGET, Bench
from tests.unit.operator.waiting import until


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
    assert bench.changes >= 3


async def test_a_report_of_progress_alone_is_no_change(bench: Bench) -> None:
    bench.store.put(KEYS.plan, make_plan(3).to_json())
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    bench.store.put(KEYS.progress, ProgressValue(step=7, round=3).to_json())
    await bench.until(lambda view: view.progress)
    changes, seen_at = bench.changes, bench.view.progress_seen_at
    assert seen_at is not None
    for step in (8, 9):
        bench.store.put(KEYS.progress, ProgressValue(step=step, round=3).to_json())
        await bench.until(lambda view, step=step: view.progress.step == step)  # type: ignore[misc]
    assert (bench.changes, set(bench.reports)) == (changes, {KEY})
    assert bench.view.progress_seen_at is not None
    assert bench.view.progress_seen_at > seen_at
    seen_at = bench.view.progress_seen_at
    bench.store.put(KEYS.progress, ProgressValue(step=9, round=3, last_checkpoint_step=9).to_json())
    await bench.until(lambda view: view.progress and view.progress.last_checkpoint_step == 9)
    assert bench.view.progress_seen_at == seen_at, "the same step"


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


async def test_the_view_has_the_time_of_the_last_response(bench: Bench) -> None:
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
    lost = bench.view.answered_at
    assert lost is not None
    bench.memory.fault = None
    await bench.until(
        lambda view: view.connectivity is Connectivity.REACHABLE and view.answered_at and view.answered_at > lost
    )


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


async def test_a_run_no_longer_watched_is_forgotten(bench: Bench) -> None:
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    await bench.run_watches.follow(KEY, None)
    assert bench.view.connectivity is Connectivity.CONNECTING
    await bench.run_watches.execute(KEY, PublishSpec(spec=SPEC, reason="test"))
    assert bench.view.spec is None


async def test_continuous_writes_requeue_the_job_at_a_limited_rate(bench: Bench) -> None:
    await bench.run_watches.follow(KEY, TARGET)
    await bench.until(lambda view: view.connectivity is Connectivity.REACHABLE)
    bench.changes = 0
    for step in range(500):
        bench.store.put(KEYS.progress, ProgressValue(step=step, round=1).to_json())
    await bench.until(lambda view: view.progress and view.progress.step == 499)
    assert bench.changes < 100
