"""When the reconciler writes statuses and posts Events. The API server is a list here; tests/integration
counts the requests to a real one."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import AsyncIterator
from typing import Any

import pytest
from elasticjob_api import ConditionType, Progress, Reason, Status
from elasticjob_operator.controller import JobCache, ProgressWriter, Reconciler, WorkQueue, status_throttle
from elasticjob_operator.kube import ApiError
from elasticjob_operator.kube.apply_result import ApplyResult
from elasticjob_operator.kube.jobs import StatusWrite
from elasticjob_operator.names import NamespacedName
from elasticjob_operator.planning import Action, CreatePod, EvictMember, JobEvent, Plan
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState, RendezvousView

from tests.unit.operator.builders import NAME, NOW, TEMPLATE, UID, make_status
from tests.unit.operator.waiting import until

KEY: NamespacedName = ("ml", NAME)
ACCEPTED = make_status(ConditionType.ACCEPTED)
RUNS = make_status(ConditionType.ACCEPTED, ConditionType.RUNNING)
RESTARTS = make_status(ConditionType.ACCEPTED, ConditionType.RESTARTING)
ENDED = make_status(ConditionType.SUCCEEDED)


class Bench:
    """One job, whose plan the test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.set_second(100.0)
        self.jobs = JobCache()
        self.queue: WorkQueue[NamespacedName] = WorkQueue()
        self.writes: list[Status] = []
        self.writes_before = 0
        """`status.writes` before the first."""
        self.failing_writes = 0
        self.generation = 1
        """As the API server has it."""
        self.version = 1
        self.status: dict[str, Any] = {}
        self.conflicts = 0
        self.posted: list[str] = []
        self.names: list[tuple[str, str]] = []
        self.seen: list[Status] = []
        self.actions = 0
        """Reconciliations that create something, from now on."""
        self.bugs = 0
        """Writes to etcd that fail with a bug, from now on."""
        self._decided = Plan(status=Status())
        self.progress = ProgressWriter(Settings(), self.jobs, self.queue, self, self.view)  # type: ignore[arg-type]
        reconciler = Reconciler(Settings(), self.jobs, self, self, self, self.queue, self.progress)  # type: ignore[arg-type]
        monkeypatch.setattr("elasticjob_operator.controller.reconciler.plan", self._plan)
        spec = {"workers": {"replicas": 1, "template": TEMPLATE}}
        self.jobs.put(
            {
                "metadata": {"name": NAME, "namespace": "ml", "uid": UID, "generation": 1, "resourceVersion": "1"},
                "spec": spec,
            }
        )
        tasks = self.queue.work(reconciler.reconcile, 1), self.progress.statuses.run()
        self._tasks = [asyncio.create_task(task) for task in tasks]

    def set_second(self, seconds: float) -> None:
        """How long the second is within which one status is written."""
        self._monkeypatch.setattr(status_throttle, "STATUS_SECONDS", seconds)

    async def decide(
        self,
        status: Status,
        *messages: str,
        actions: tuple[Action, ...] = (),
        stalls_at: datetime.datetime | None = None,
    ) -> None:
        """A reconciliation with that plan."""
        events = tuple(JobEvent(reason=Reason.TRAINING, message=message) for message in messages)
        self._decided = Plan(status=status, events=events, actions=actions, stalls_at=stalls_at)
        rounds = len(self.seen)
        self.queue.add(KEY)
        await until(lambda: len(self.seen) > rounds)

    def _plan(self, job: Any, *_: Any) -> Plan:
        self.seen.append(job.status.model_copy(update={"writes": 0}))
        decided, self._decided = self._decided, Plan(status=self._decided.status)  # an Event is posted once
        status = decided.status.model_copy(update={"writes": job.status.writes})
        return dataclasses.replace(decided, status=status)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Cluster, RunWatches and EventRecorder

    def observe(self, *_: Any) -> JobState:
        return JobState()

    def view(self, *_: Any) -> RendezvousView:
        return RendezvousView()

    async def follow(self, *_: Any) -> None:
        return None

    async def execute(self, *_: Any) -> None:
        self.bugs -= 1
        if self.bugs >= 0:
            raise RuntimeError("a bug")

    async def apply(self, *_: Any, **__: Any) -> Any:
        self.actions -= 1
        if self.actions < 0:
            return ApplyResult()
        self.queue.add(KEY)  # the answer to our own write wakes the job
        created = CreatePod(job=NAME, like={}, index=0, name=f"{NAME}-worker-0", reason="wanted")
        return ApplyResult(done=(created,))

    async def write_status(self, key: NamespacedName, uid: str, version: str, status: dict[str, Any]) -> StatusWrite:
        if uid != self.jobs.uid(key):
            self.conflicts += 1
            return StatusWrite(None, written=False)
        if self.failing_writes:
            self.failing_writes -= 1
            raise ApiError(500, "InternalError", "not now")
        if int(version) != self.version:
            self.conflicts += 1
            return StatusWrite(self._as_in_api_server(key), written=False)
        self.writes.append(Status.model_validate({**status, "writes": 0}))
        assert status["writes"] == (self.writes_before + len(self.writes)) % 2**31
        self.version += 1
        self.status = status
        return StatusWrite(self._as_in_api_server(key), written=True)

    def _as_in_api_server(self, key: NamespacedName) -> dict[str, Any]:
        body = self.jobs.body(key)
        assert body is not None
        metadata = {**body["metadata"], "resourceVersion": str(self.version), "generation": self.generation}
        return {**body, "metadata": metadata, "status": self.status}

    def another_client_writes(self, status: Status | None = None) -> None:
        """A write to the API server that the watch has not reported yet."""
        self.version += 1
        if status is not None:
            self.status = status.to_api()

    def watch_tells(self) -> None:
        self.jobs.put(self._as_in_api_server(KEY))
        self.queue.add(KEY)

    def record(self, _namespace: str, _job: str, _uid: str, version: str, event: JobEvent) -> None:
        assert not self.writes or int(version.partition(".")[0]) == self.version, "after the write, with its version"
        self.posted.append(event.message)
        self.names.append((version, event.message))


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    bench = Bench(monkeypatch)
    yield bench
    await bench.close()


async def test_the_look_for_a_stall_is_when_the_plan_says(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(bench.progress, "expect", lambda key, stalls_at: told.append((key, stalls_at)))
    await bench.decide(ACCEPTED, stalls_at=NOW)
    await until(lambda: bool(told))
    assert told == [(KEY, NOW)]


async def test_a_number_of_writes_that_someone_has_written_stops_no_write(bench: Bench) -> None:
    body = bench.jobs.body(KEY)
    assert body is not None
    bench.version, bench.writes_before = 2, 2**63 - 1
    metadata = {**body["metadata"], "resourceVersion": "2"}
    bench.jobs.put({**body, "status": {"writes": bench.writes_before}, "metadata": metadata})
    await bench.decide(ACCEPTED)
    await until(lambda: bench.status.get("writes") == 0)


async def test_the_first_change_is_written_at_once_and_later_ones_held(bench: Bench) -> None:
    await bench.decide(ACCEPTED, "accepted")
    await until(lambda: bench.posted == ["accepted"])
    await bench.decide(RUNS, "runs")
    await bench.decide(RESTARTS, "restarts")
    assert bench.writes == [ACCEPTED]
    assert bench.posted == ["accepted"], "no Event before its write"


async def test_held_changes_are_written_together_with_all_events(bench: Bench) -> None:
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    await bench.decide(RUNS, "runs")
    await bench.decide(RESTARTS, "restarts")
    bench.set_second(0.2)
    await bench.decide(RUNS, "runs again")
    await until(lambda: len(bench.writes) == 2, "only the timer requeues the job")
    assert bench.writes == [ACCEPTED, RUNS]
    await until(lambda: bench.posted == ["runs", "restarts", "runs again"], "in order, each once")


async def test_reconciliations_continue_from_the_pending_status(bench: Bench) -> None:
    """Else a restart that is over within the second would never have been."""
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    await bench.decide(RESTARTS)
    await bench.decide(RUNS)
    assert bench.seen[-1] == RESTARTS


async def test_a_change_that_is_undone_causes_events_but_no_write(bench: Bench) -> None:
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    await bench.decide(RUNS, "runs")
    await bench.decide(ACCEPTED, "stopped")
    await until(lambda: bench.posted == ["runs", "stopped"])
    assert bench.writes == [ACCEPTED]


async def test_the_end_of_a_job_is_written_at_once(bench: Bench) -> None:
    await bench.decide(ACCEPTED)
    await bench.decide(RUNS, "runs")
    await bench.decide(ENDED, "ended")
    await until(lambda: bench.writes[-1:] == [ENDED])
    await until(lambda: bench.posted == ["runs", "ended"])


async def test_a_failed_write_is_retried_and_loses_nothing(bench: Bench) -> None:
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    await bench.decide(RUNS, "runs")
    bench.failing_writes = 1
    await bench.decide(ENDED)
    await until(lambda: bench.writes[-1:] == [ENDED], "by the queue's own wait")
    assert bench.posted == ["runs"]


async def test_an_action_and_its_result_are_one_write(bench: Bench) -> None:
    bench.actions = 1
    await bench.decide(ACCEPTED, "accepted")
    await until(lambda: bench.writes == [ACCEPTED])
    assert len(bench.seen) == 2, "by the next reconciliation"
    await until(lambda: [item.split()[0] for item in bench.posted] == ["accepted", "Created"])


async def test_the_same_action_twice_is_two_events_without_a_write_in_between(bench: Bench) -> None:
    """An Event's name is made of the job's version and the words: the second one would be taken for the first."""
    bench.actions = 1
    await bench.decide(ACCEPTED)
    await until(lambda: len(bench.posted) == 1)
    for times in (2, 3):
        bench.actions = 1
        await bench.decide(ACCEPTED)
        await until(lambda times=times: len(bench.posted) == times)  # type: ignore[misc]
    assert len(bench.writes) == 1
    assert len(set(bench.posted)) == 1
    assert len(set(bench.names)) == 3


async def test_a_job_with_actions_in_every_reconciliation_is_still_written(bench: Bench) -> None:
    bench.set_second(0.2)
    bench.actions = 10**9
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])


async def test_a_spec_change_first_seen_in_a_write_response_is_reconciled(bench: Bench) -> None:
    """The watch later reports it as already known, so a suspension would be noticed only a minute later."""
    bench.generation = 2
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    await until(lambda: len(bench.seen) == 2, "another reconciliation")


async def test_a_conflicting_status_is_decided_again_at_once_and_loses_nothing(bench: Bench) -> None:
    """A user edits the job, and the watch has not reported it yet."""
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    bench.another_client_writes()
    await bench.decide(ENDED, "ended")
    await until(lambda: bench.writes[-1:] == [ENDED])
    assert bench.conflicts == 1, "the conflict returned the newer job"
    await until(lambda: bench.posted == ["ended"])


async def test_a_pending_status_never_undoes_an_end_written_by_another_operator(bench: Bench) -> None:
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    await bench.decide(RUNS)  # held back
    bench.another_client_writes(ENDED)
    bench.watch_tells()
    await until(lambda: bench.seen[-1] == ENDED, "planned from the end, not from what was held")


async def test_a_continuously_edited_job_is_written_eventually(bench: Bench) -> None:
    bench.set_second(0.05)
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    original, edits = bench.write_status, 5

    async def edited(*arguments: Any) -> StatusWrite:
        nonlocal edits
        if edits > 0:
            edits -= 1
            bench.another_client_writes()
        return await original(*arguments)

    bench.write_status = edited  # type: ignore[method-assign, assignment]
    await bench.decide(RUNS)
    await until(lambda: bench.writes == [ACCEPTED, RUNS])
    assert bench.conflicts == 5


async def test_a_bug_in_a_write_to_etcd_is_logged_and_the_job_reconciled_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.bugs = 1
    await bench.decide(ACCEPTED, actions=(EvictMember(member="digits-worker-1", reason="lost"),))
    await until(lambda: len(bench.seen) == 2, "without another event")
    assert bench.writes == [ACCEPTED], "status does not wait for etcd"
    assert "a bug; retrying" in caplog.text


async def test_a_job_that_cannot_be_read_is_reported_once_also_after_another_of_its_name(bench: Bench) -> None:
    await bench.decide(ACCEPTED)
    await until(lambda: bench.writes == [ACCEPTED])
    body = {**bench._as_in_api_server(KEY), "spec": {"workers": {"replicas": "many"}}, "status": {}}
    bench.jobs.put({**body, "metadata": {**body["metadata"], "uid": "another"}})
    bench.status = {}
    bench.queue.add(KEY)
    await until(lambda: len(bench.writes) == 2)
    condition = bench.writes[1].condition(ConditionType.ACCEPTED)
    assert condition is not None
    assert condition.reason == "InvalidSpec"
    assert bench.conflicts == 0, "nothing was written about the earlier job"


def trains(step: int, **fields: Any) -> Status:
    return make_status(ConditionType.ACCEPTED, ConditionType.RUNNING, progress=Progress(step=step), **fields)


async def test_progress_alone_waits_for_the_budget_and_a_change_of_state_does_not(bench: Bench) -> None:
    bench.set_second(0.0)
    await bench.decide(trains(1))
    await until(lambda: bench.writes == [trains(1)], "the first progress is a change of state")
    await bench.decide(trains(2))
    await until(lambda: len(bench.progress.statuses) == 1)
    assert bench.writes == [trains(1)]
    await bench.decide(trains(3, ready_replicas=1))
    await until(lambda: bench.writes == [trains(1), trains(3, ready_replicas=1)], "with the progress of that moment")
    assert len(bench.progress.statuses) == 0, "it was written with the rest"


async def test_progress_is_written_when_its_turn_comes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.set_second(0.0)
    monkeypatch.setattr(bench.progress.statuses, "_pause", 0.0)
    await bench.decide(trains(1))
    await until(lambda: bench.writes == [trains(1)])
    await bench.decide(trains(2), "an event")
    await until(lambda: bench.writes == [trains(1), trains(2)])
    await until(lambda: bench.posted == ["an event"])


async def test_a_report_of_a_stalled_job_is_decided_on_at_once(bench: Bench) -> None:
    bench.set_second(0.0)
    await bench.decide(trains(1))
    await until(lambda: bench.writes == [trains(1)])
    planned = len(bench.seen)
    bench.progress.on_report(KEY)
    assert len(bench.progress.statuses) == 1
    assert len(bench.seen) == planned, "no plan"
    stalled = make_status(ConditionType.STALLED, progress=Progress(step=1))
    await bench.decide(stalled)
    await until(lambda: bench.writes[-1] == stalled)
    planned = len(bench.seen)
    bench.progress.on_report(KEY)
    await until(lambda: len(bench.seen) > planned)
