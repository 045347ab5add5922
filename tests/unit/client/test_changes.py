"""The lines of watch --plain."""

from __future__ import annotations

import dataclasses
import datetime

from elasticjob.decisions.changes import changes, progress_line
from elasticjob.state import Condition, Failure, JobState, Progress, WorkerState

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
RUNNING = Condition("Running", "True", "Training", "Round 1: 2 processes are training.")
JOB = JobState("bert", "ml", reported="Running", replicas=2, ready=2, started=NOW, conditions={"Running": RUNNING})


def worker(index: int, *, ready: bool = True, uid: str = "", problem: str = "") -> WorkerState:
    return WorkerState(f"bert-worker-{index}", uid or f"u{index}", index, "Running", ready, "n1", NOW, problem=problem)


def texts(before: JobState | None, after: JobState | None, *workers: list[WorkerState]) -> list[str]:
    old, new = workers or ([], [])
    return [change.text for change in changes(before, after, old, new)]


def test_the_first_line_says_where_the_job_is() -> None:
    assert texts(None, JOB) == ["Running: 2/2 worker pods ready", f"Running True: {RUNNING.message}"]


def test_a_job_that_stays_as_it_is_has_no_lines() -> None:
    assert texts(JOB, JOB, [worker(0)], [worker(0)]) == []


def test_a_restart_names_the_worker_pod_and_the_reason() -> None:
    after = dataclasses.replace(JOB, restarts=1, failure=Failure("bert-worker-1", "Signal", ""))
    assert texts(JOB, after) == ["restart 1 of at most 10: bert-worker-1 Signal"]


def test_a_replaced_worker_pod_comes_and_goes() -> None:
    assert texts(JOB, JOB, [worker(0), worker(1)], [worker(0), worker(1, uid="new", ready=False)]) == [
        "bert-worker-1 created",
        "bert-worker-1 is gone",
    ]
    assert texts(JOB, JOB, [worker(1, ready=False)], [worker(1)]) == ["bert-worker-1 is ready"]
    assert texts(JOB, JOB, [worker(1)], [worker(1, problem="OOMKilled")]) == ["bert-worker-1: OOMKilled"]


def test_a_worker_pod_that_ends_as_asked_has_no_problem_and_another_one_says_its_last_line() -> None:
    ended = dataclasses.replace(worker(1, problem="Error"), exit_code=143, detail="of its log\nleft the job")
    assert texts(JOB, JOB, [worker(1)], [dataclasses.replace(ended, deleting=True)]) == []
    assert texts(JOB, JOB, [worker(1)], [ended]) == ["bert-worker-1: Error left the job"]


def test_a_thousand_worker_pods_are_one_line() -> None:
    many = [worker(index) for index in range(1000)]
    assert texts(JOB, JOB, [], many) == ["1000 worker pods (bert-worker-0 to bert-worker-999) created"]


def test_scaling_and_conditions_are_told_once() -> None:
    degraded = Condition("Degraded", "True", "WorkersMissing", "1 of 2 worker pods are training.")
    after = dataclasses.replace(JOB, replicas=4, conditions={"Running": RUNNING, "Degraded": degraded})
    assert texts(JOB, after) == ["scaled from 2 to 4 worker pods", "Degraded True: 1 of 2 worker pods are training."]
    assert texts(after, after) == []
    assert texts(after, dataclasses.replace(after, conditions={"Running": RUNNING})) == []


def test_the_end_says_why() -> None:
    failed = Condition("Failed", "True", "MaxRestartsExceeded", "Failed 11 times.")
    assert texts(JOB, dataclasses.replace(JOB, conditions={"Failed": failed})) == ["failed: Failed 11 times."]
    succeeded = Condition("Succeeded", "True", "WorkersSucceeded", "")
    assert texts(JOB, dataclasses.replace(JOB, conditions={"Succeeded": succeeded})) == ["succeeded"]
    assert texts(JOB, None) == ["the job was deleted"]


def test_progress_is_a_line() -> None:
    assert progress_line(dataclasses.replace(JOB, progress=Progress(7, 2.5, 5, {"loss": "0.1"}))) == (
        "step 7, 2.5 steps/s, loss 0.1"
    )
    assert progress_line(JOB) == ""
