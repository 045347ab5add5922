"""Reading lines, and choosing worker pods by rank."""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import Any

import pytest
from elasticjob.decisions.log_lines import Line, parse_line, whole_seconds
from elasticjob.decisions.log_selection import Selection, choose_workers
from elasticjob.errors import ElasticJobError, NotFoundError, UsageError
from elasticjob.state import Change, JobState, WorkerState, job_state

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)


def worker(index: int, age: int = 100, **fields: object) -> WorkerState:
    created = NOW - datetime.timedelta(seconds=age)
    return WorkerState(f"bert-worker-{index}", f"u{index}", index, "Running", True, created=created, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("raw", "at", "text"),
    [
        (b"2026-01-01T12:00:00Z x", 0, "x"),
        (b"2026-01-01T12:00:00.000000001Z x", 1, "x"),
        (b"2026-01-01T14:00:00.5+02:00 x", 500_000_000, "x"),
        (b"2026-01-01T12:00:00Z 10%\r50%\r100%\r", 0, "100%"),
        (b"2026-01-01T12:00:00Z", 0, ""),
        (b"2026-01-01T12:00:00Z \xff", 0, "\ufffd"),
    ],
)
def test_lines_have_a_time_in_nanoseconds(raw: bytes, at: int, text: str) -> None:
    line = parse_line(raw, "p")
    assert (line.at - int(NOW.timestamp()) * 1_000_000_000, line.text) == (at, text)
    assert whole_seconds(line.at) == "2026-01-01T12:00:00Z"


def test_a_line_without_a_time_is_kept() -> None:
    assert parse_line(b"unable to retrieve container logs", "p") == Line(0, "p", "unable to retrieve container logs")


@pytest.mark.parametrize(
    ("rank", "procs", "workers", "name"),
    [
        (0, "1", [worker(0), worker(1)], "bert-worker-0"),
        (3, "2", [worker(0), worker(1)], "bert-worker-1"),
        (0, "1", [worker(0, age=1), worker(1)], "bert-worker-1"),
        (1, "1", [worker(0, age=1), worker(1)], "bert-worker-0"),
        (0, "1", [worker(0, deleting=True), worker(1)], "bert-worker-1"),
    ],
)
def test_a_rank_is_in_the_worker_pod_that_has_it(rank: int, procs: str, workers: list[WorkerState], name: str) -> None:
    """A replacement of worker pod 0 has the last rank."""
    job = JobState("bert", "ml", procs=procs)
    assert [worker.name for worker in choose_workers(job, workers, Selection(rank=rank))] == [name]


@pytest.mark.parametrize("given", ["1", "worker-1", "bert-worker-1", "bert-worker-1-gwtch"])
def test_a_worker_pod_is_given_by_its_index_or_its_name(given: str) -> None:
    workers = [dataclasses.replace(worker(index), name=f"bert-worker-{index}-gwtch") for index in range(3)]
    assert choose_workers(JobState("bert", "ml"), workers, Selection(worker=given)) == [workers[1]]
    with pytest.raises(NotFoundError, match="bert has no worker pod 7: give its index"):
        choose_workers(JobState("bert", "ml"), workers, Selection(worker="7"))


def test_a_rank_of_a_job_that_trains_in_replicas_is_in_several_worker_pods() -> None:
    job = JobState("bert", "ml", procs="1", replica_size=2)
    with pytest.raises(UsageError, match=r"trains in replicas of 2 worker pods, .*\n.* --replica 0 --rank 1"):
        choose_workers(job, [worker(index) for index in range(4)], Selection(rank=1))


IN_REPLICAS = {
    "spec": {"workers": {"replicaSize": 2, "procsPerWorker": 2}},
    "status": {"replicaWorkers": [{"replica": 0, "workers": [3, 0]}, {"replica": 2, "workers": [1, 2]}]},
    "metadata": {"name": "bert"},
}


@pytest.mark.parametrize(
    ("replica", "rank", "indices"), [(0, None, [3, 0]), (0, 0, [3]), (0, 1, [3]), (0, 2, [0]), (2, 3, [2])]
)
def test_a_rank_of_a_replica_is_in_the_worker_pod_that_has_it(
    replica: int, rank: int | None, indices: list[int]
) -> None:
    workers = [*(worker(index) for index in range(4)), worker(3, age=1)]  # one that replaces worker pod 3
    found = choose_workers(job_state(IN_REPLICAS), workers, Selection(replica=replica, rank=rank))
    assert [item.index for item in found] == indices
    assert all(item is workers[-1] for item in found if item.index == 3)


@pytest.mark.parametrize(
    ("changed", "replica", "rank", "said"),
    [
        ({}, 1, 0, "There is no replica 1: the replicas of bert are 0, 2."),
        ({}, 2, 4, "There is no rank 4: replica 2 of bert has ranks 0 to 3."),
        ({}, 0, 1, "Replica 0 of bert has lost worker pod 3; another one takes its place."),
        ({"status": {}}, 0, None, "bert has no replicas yet: its worker processes have not started."),
        ({"spec": {}}, 0, None, "bert does not train in replicas, so its ranks need no --replica."),
    ],
)
def test_a_replica_or_rank_that_does_not_exist_is_an_error(
    changed: dict[str, Any], replica: int, rank: int | None, said: str
) -> None:
    job = job_state({**IN_REPLICAS, **changed})
    with pytest.raises(ElasticJobError, match=re.escape(said)):
        choose_workers(job, [worker(0), worker(1)], Selection(replica=replica, rank=rank))


def test_processes_per_pod_follow_from_the_world_size() -> None:
    job = JobState("bert", "ml", procs="auto", world_size=8)
    assert choose_workers(job, [worker(0), worker(1)], Selection(rank=7))[0].index == 1
    with pytest.raises(NotFoundError, match="ranks 0 to 7"):
        choose_workers(job, [worker(0), worker(1)], Selection(rank=8))


def test_a_rank_of_a_finished_job_is_where_the_last_round_had_it() -> None:
    """Its worker pods are not ready, and its world size is 0."""
    rounds = Change(type="Round", world_size=8, workers=2), Change(type="Succeeded", world_size=0)
    job = JobState("bert", "ml", procs="auto", history=rounds)
    ended = [dataclasses.replace(worker(index), ready=False, phase="Succeeded") for index in range(2)]
    assert choose_workers(job, ended, Selection(rank=7))[0].index == 1
    torchrun = JobState("bert", "ml", procs="auto", history=(Change(type="Round", world_size=0, workers=2),))
    assert choose_workers(torchrun, ended, Selection(rank=1))[0].index == 1, "of which the world size is not known"


def test_many_logs_are_read_only_when_asked_for() -> None:
    job, workers = JobState("bert", "ml"), [worker(index) for index in range(65)]
    with pytest.raises(UsageError, match="--rank 0"):
        choose_workers(job, workers, Selection(everything=False))
    assert len(choose_workers(job, workers, Selection(everything=True))) == 65
