"""Tables, pages and remedies for every state of a job."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
from elasticjob.decisions.log_lines import Line
from elasticjob.decisions.obstacles import obstacles
from elasticjob.decisions.waiting import Target, WaitOutcome, said_of_resume, wait_result, waits_for
from elasticjob.state import (
    Change,
    Condition,
    EventState,
    Failure,
    JobState,
    OptimizerSteps,
    Progress,
    WorkerState,
    job_state,
    with_progress,
    worker_state,
)
from elasticjob.views.describe import describe
from elasticjob.views.jobs import job_html, job_table, worker_table
from elasticjob.views.log_lines import LineView
from elasticjob.views.table import Cell, Column, render, render_pages
from elasticjob.views.words import duration
from rich.cells import cell_len

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
HOUR = datetime.timedelta(hours=1)


def job(**fields: object) -> JobState:
    """An hour old, seen by the operator, with these fields."""
    conditions = fields.pop("conditions", {"Running": ("False", "WaitingForWorkers", "1 of 4 worker pods are ready.")})
    assert isinstance(conditions, dict)
    parsed = {
        type_: Condition(type_, status, reason, message, NOW) for type_, (status, reason, message) in conditions.items()
    }
    base = JobState("bert", "ml", created=NOW - HOUR, started=NOW - HOUR, replicas=4, least=2, most=4, image="train:1")
    return dataclasses.replace(base, conditions=parsed, **fields)  # type: ignore[arg-type]


RUNNING = job(
    conditions={"Accepted": ("True", "Accepted", ""), "Running": ("True", "Training", "Round 3.")},
    reported="Running",
    ready=4,
    world_size=4,
    round=3,
    progress=Progress(1200, 3.25, 1000, {"loss": "0.5"}, NOW),
)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_tables_fit_the_terminal(width: int) -> None:
    long = job(name="训练-a-job-with-a-long-name-of-47-characters-or-so", reported="WaitingForRendezvous")
    for line in job_table([RUNNING, long], NOW, width=width):
        assert cell_len(line) <= max(width, 31), "the name and the status are always there"


def test_nothing_is_cut_in_a_pipe() -> None:
    name = "a-job-with-a-name-of-47-characters-which-is-long"
    assert any(name in line for line in job_table([job(name=name)], NOW))


def test_wide_characters_keep_columns_in_line() -> None:
    lines = render([Column("A"), Column("B")], [["训练", "x"], ["ab", "y"]])
    assert [cell_len(line[: line.index(letter)]) for line, letter in zip(lines[1:], "xy", strict=True)] == [7, 7]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert render([Column("A")], [["a\x1b[2Jb\nc"]])[1] == "a [2Jb c"


def test_colors_are_only_for_terminals() -> None:
    row = [[Cell("Running", "good")]]
    assert "\x1b" not in "".join(render([Column("S")], row))
    assert "\x1b[32mRunning" in "".join(render([Column("S")], row, color=True))


BACK = Change(NOW, "Round", "MemberLost", round=3, step=140, steps_lost=130)


_WAITS = "Workload bert waits. What to do: nothing, if other jobs end soon; else see its queue"
QUEUED = {
    "Queued": ("True", "WaitingForQuota", _WAITS),
    "Running": ("False", "WaitingForQuota", _WAITS),
    "Suspended": ("True", "WaitingForQuota", _WAITS),
}


@pytest.mark.parametrize(
    ("fields", "what", "remedy"),
    [
        ({"conditions": {}}, "No operator has picked up", "elasticjob doctor"),
        ({"conditions": {}, "managed_by": "kueue.x-k8s.io/multikueue"}, "managed by kueue", ""),
        ({"generation": 2, "observed_generation": 1}, "not seen the last change", "elasticjob doctor"),
        ({"conditions": {"Running": ("False", "ClaimUnbound", "no volume. What to do: x")}}, "no volume.", "x"),
        ({"conditions": {"Accepted": ("False", "PodRejected", "quota. What to do: raise it")}}, "quota.", "raise it"),
        (
            {"conditions": {"Accepted": ("True", "Accepted", "Accepted. But no time. What to do: more.")}},
            "no time",
            "more.",
        ),
        ({"conditions": {"Queued": ("False", "PriorityClassMissing", "no x. What to do: add it")}}, "no x.", "add it"),
        ({"conditions": {"Stalled": ("True", "NoProgress", "no step")}}, "no step", "elasticjob logs bert"),
        ({"conditions": {"Suspended": ("True", "Suspended", "")}}, "suspended", "elasticjob resume bert"),
        ({"conditions": QUEUED}, "Workload bert waits.", "see its queue"),
        ({"conditions": {"Failed": ("True", "MaxRestartsExceeded", "11 times")}}, "11 times", "last checkpoint"),
        ({"failing_nodes": (("n1", 3),)}, "on node n1", "kubectl cordon n1"),
        ({"keeps_files": False}, "No volume outlives the worker pods", "--checkpoint-claim"),
        ({"history": (BACK,)}, "Round 3 went back from step 140 to 10.", "ElasticSession"),
    ],
)
def test_every_obstacle_has_its_remedy(fields: dict[str, object], what: str, remedy: str) -> None:
    found = [obstacle for obstacle in obstacles(job(**fields), [], NOW) if what in obstacle.what]
    assert found
    assert remedy in found[0].remedy


def test_one_wait_of_two_conditions_is_one_obstacle() -> None:
    wait = ("False", "Unschedulable", "No node takes Pod bert-etcd-0. What to do: add one.")
    (found,) = obstacles(job(conditions={"RendezvousReady": wait, "Running": wait}), [], NOW)
    assert (found.what, found.remedy) == ("No node takes Pod bert-etcd-0.", "add one.")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [("Workload bert waits.", False)]),
        ({"Suspended": ("False", "Suspending", "ends")}, [("Workload bert waits.", False)]),
        ({"Queued": ("True", "Deactivated", "inactive")}, [("inactive", True)]),
        ({"Queued": ("True", "WaitingForChecks", "checks")}, [("checks", False)]),
        ({"Queued": ("True", "WaitingForQuota", "too big. What to do: ask")}, [("too big.", True)]),
        ({"Accepted": ("False", "PodRejected", "no class")}, [("no class", True), ("Workload bert waits.", False)]),
        (
            {"Accepted": ("False", "PodRejected", "no class"), "Queued": ("True", "NotAccepted", "see Accepted")},
            [("no class", True)],
        ),
    ],
)
def test_job_in_a_queue_is_told_what_it_waits_for_and_not_to_resume(
    changed: dict[str, tuple[str, str, str]], expected: list[tuple[str, bool]]
) -> None:
    conditions = {"Queued": QUEUED["Queued"], "Suspended": QUEUED["Suspended"], **changed}
    found = obstacles(job(conditions=conditions), [], NOW)
    assert [(item.what, item.serious) for item in found] == expected


def test_page_of_a_job_in_a_queue_says_since_when_it_waits_and_how_many_worker_pods_it_asks_for() -> None:
    waits = describe(job(conditions=QUEUED, reported="Queued"), [], None, NOW + datetime.timedelta(seconds=90))
    assert waits[2].endswith("Queued for 90s")
    assert waits[3].endswith("0 of 4 ready, trains with 2 to 4")
    partly = dataclasses.replace(RUNNING, ready=2, desired=2)
    assert describe(partly, [], None, NOW)[3].endswith("2 of 2 ready, 4 requested, trains with 2 to 4")
    replicas = dataclasses.replace(partly, replica_size=2)
    assert describe(replicas, [], None, NOW)[3].endswith("trains with 2 to 4, in replicas of 2")


@pytest.mark.parametrize(
    ("conditions", "queue", "runs", "said"),
    [
        ({}, "", False, "bert is being resumed."),
        ({}, "", True, "bert is running."),
        ({}, "team", False, "bert is being resumed: it returns to queue team."),
        (QUEUED, "team", False, f"bert is not suspended: it waits in queue team. {_WAITS}"),
    ],
)
def test_resume_says_what_the_job_waits_for_then(
    conditions: dict[str, tuple[str, str, str]], queue: str, runs: bool, said: str
) -> None:
    assert said_of_resume(job(conditions=conditions, queue=queue), runs=runs) == said


@pytest.mark.parametrize(
    ("message", "remedy"),
    [("out of memory", "Read the log:"), ("ValueError: x\nTraceback", "Read the traceback above and the log:")],
)
def test_a_remedy_names_a_traceback_only_where_there_is_one(message: str, remedy: str) -> None:
    failed = job(
        conditions={"Failed": ("True", "MaxRestartsExceeded", "11 times")},
        failure=Failure("bert-worker-0", "OutOfMemory", message),
    )
    (found,) = obstacles(failed, [], NOW)
    assert found.remedy.startswith(remedy)


def test_a_job_that_trains_or_has_succeeded_has_no_obstacles() -> None:
    assert obstacles(RUNNING, [], NOW) == []
    few = dataclasses.replace(RUNNING, history=(BACK, dataclasses.replace(BACK, steps_lost=5, step=1200)))
    assert obstacles(few, [], NOW) == [], "few steps are trained again"
    saved = job(conditions={"Failed": ("True", "MaxRestartsExceeded", "")}, keeps_files=False)
    assert not [obstacle for obstacle in obstacles(saved, [], NOW) if "volume" in obstacle.what], "too late"
    assert obstacles(job(conditions={"Succeeded": ("True", "WorkersSucceeded", "")}), [], NOW) == []


@pytest.mark.parametrize(
    ("checkpoint", "volume", "keeps"),
    [
        ({}, {}, False),
        ({"volume": {"persistentVolumeClaim": {"claimName": "c"}}}, {}, True),
        ({"volume": {"emptyDir": {}}}, {}, False),
        ({"directory": "/checkpoints"}, {"configMap": {"name": "script"}}, False),
        ({}, {"nfs": {"server": "nas", "path": "/"}}, True),
        ({}, {"persistentVolumeClaim": {"claimName": "c"}, "mounted": False}, False),
    ],
)
def test_a_volume_that_outlives_worker_pods_is_known(
    checkpoint: dict[str, object], volume: dict[str, object], keeps: bool
) -> None:
    mounted = volume.pop("mounted", bool(volume))
    container = {"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}] if mounted else []}
    pod = {"containers": [container], "volumes": [{"name": "v", **volume}] if volume else []}
    spec = {"workers": {"template": {"spec": pod}}, "checkpoint": checkpoint}
    assert job_state({"metadata": {"name": "bert"}, "spec": spec}).keeps_files == keeps


def test_a_worker_pod_that_starts_for_long_is_an_obstacle() -> None:
    slow = WorkerState("bert-worker-3", "u", 3, "Pending", created=NOW - HOUR, problem="FailedMount", detail="no claim")
    (found,) = obstacles(RUNNING, [slow], NOW)
    assert found.what == "bert-worker-3 is FailedMount: no claim"
    assert "kubectl describe pod bert-worker-3 -n ml" in found.remedy


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, "Ready"),
        ({"status": {"phase": "Running"}}, "Starting"),
        ({"metadata": {"deletionTimestamp": "x"}, "status": {"phase": "Running"}}, "Terminating"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}}, "ErrImagePull"),
        (
            {"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}},
            "OOMKilled",
        ),
        (
            {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}},
            "Unschedulable",
        ),
        ({"status": {"phase": "Succeeded"}}, "Completed"),
        ({}, "Pending"),
    ],
)
def test_a_worker_pod_is_one_word(pod: dict[str, object], word: str) -> None:
    assert worker_state(pod).summary == word


def test_a_page_names_failure_traceback_and_events() -> None:
    failed = job(
        conditions={"Failed": ("True", "MaxRestartsExceeded", "Failed 11 times.")},
        failure=Failure("bert-worker-1", "ApplicationError", "Traceback\nRuntimeError: no data", 1, 3),
        causes={"ApplicationError": 11},
        restarts=11,
    )
    events = [EventState(NOW, True, "WorkerFailed", "bert-worker-1 failed", 3)]
    page = "\n".join(describe(failed, [], events, NOW))
    for words in ("11 of at most 10 (ApplicationError 11)", "RuntimeError: no data", "rank 3", "(x3)", "exit code 1"):
        assert words in page
    in_replicas = describe(dataclasses.replace(failed, replica_size=2), [], events, NOW)
    assert any("bert-worker-1, rank 3 of its replica" in line for line in in_replicas)
    assert "Events" not in "\n".join(describe(RUNNING, [], None, NOW))


def test_of_a_thousand_worker_pods_a_page_lists_those_in_trouble() -> None:
    workers = [WorkerState(f"bert-worker-{n}", str(n), n, "Running", ready=n != 7, created=NOW) for n in range(1000)]
    page = describe(RUNNING, workers, [], NOW)
    assert sum("bert-worker-" in line for line in page) == 1
    assert any("999 more worker pods" in line for line in page)


def test_a_script_that_reports_nothing_shows_its_optimizer_steps() -> None:
    counted = dataclasses.replace(RUNNING, progress=None, optimizer_steps=OptimizerSteps(70, 2.5, NOW - HOUR))
    assert any("70 optimizer steps, 2.5 per second (60m ago)" in line for line in describe(counted, [], [], NOW))
    unseen = dataclasses.replace(RUNNING, progress=None, optimizer_steps=OptimizerSteps(0, 2.5, NOW - HOUR, 70))
    text = "no optimizer step, 70 backward passes, 2.5 per second (60m ago)"
    assert any(text in line for line in describe(unseen, [], [], NOW))


def test_names_are_escaped_in_notebooks() -> None:
    assert "<script>" not in job_html([job(name="<script>", reported="<b>")], NOW)


@pytest.mark.parametrize(
    ("state", "target", "outcome"),
    [
        (None, Target.SUCCEEDED, WaitOutcome.DELETED),
        (None, Target.DELETED, WaitOutcome.REACHED),
        (RUNNING, Target.RUNNING, WaitOutcome.REACHED),
        (RUNNING, Target.STARTED, WaitOutcome.REACHED),
        (RUNNING, Target.SUCCEEDED, WaitOutcome.WAITING),
        (job(conditions={"Succeeded": ("True", "", "")}), Target.FINISHED, WaitOutcome.REACHED),
        (job(conditions={"Succeeded": ("True", "", "")}), Target.RUNNING, WaitOutcome.FINISHED),
        (job(conditions={"Failed": ("True", "", "")}), Target.SUCCEEDED, WaitOutcome.FAILED),
        (job(conditions={"Failed": ("True", "", "")}), Target.FAILED, WaitOutcome.REACHED),
    ],
)
def test_waiting_ends_when_the_state_is_reached_or_out_of_reach(
    state: JobState | None, target: Target, outcome: WaitOutcome
) -> None:
    assert wait_result(state, target).outcome is outcome


def test_what_a_job_waits_for_is_in_the_operator_s_words() -> None:
    assert waits_for(job()) == "1 of 4 worker pods are ready."
    assert waits_for(job(conditions={})) == "the operator has not seen the job yet"
    assert "4 processes in round 3, step 1200" in waits_for(RUNNING)
    assert waits_for(job(conditions={"Queued": QUEUED["Queued"]})) == _WAITS


def test_a_line_keeps_its_own_colors_only_on_terminals() -> None:
    line = Line(0, "bert-worker-1-gwtch", "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07end")
    plain = LineView("bert", prefix=True, timestamps=False, color=False)
    assert plain.text(line) == "worker-1 | red end"
    colored = LineView("bert", prefix=False, timestamps=False, color=True)
    assert colored.text(line) == "\x1b[31mred\x1b[0m end\x1b[0m"


def test_times_of_lines_have_a_date_and_a_zone() -> None:
    view = LineView("bert", prefix=False, timestamps=True, color=False)
    shown = view.text(Line(1_500_000_000_123_000_000, "bert-worker-0", "step 1"))
    time, text = shown.split(" ", 1)
    assert datetime.datetime.fromisoformat(time).timestamp() == 1_500_000_000.123
    assert text == "step 1"


def test_exit_codes_of_worker_pods_are_shown() -> None:
    worker = WorkerState("bert-worker-0", "u", 0, "Failed", problem="Error", exit_code=3)
    assert "exit code 3" in worker_table([worker], NOW)[1]


def test_durations_are_short() -> None:
    assert [duration(item) for item in (-5, 59, 119, 125, 36000)] == ["0s", "59s", "119s", "2m5s", "10h"]


def test_a_table_that_comes_page_by_page_keeps_its_columns() -> None:
    columns = [Column("NAME", shrinks=True), Column("STEP", right=True), Column("AGE", 2)]
    pages = [[["a", "1", "1d"]], [["much-longer-than-before", "20000", "10d"]]]
    first = ["NAME   STEP   AGE", "a         1   1d"]
    assert [*render_pages(columns, pages)] == [first, ["much-longer-than-before   20000   10d"]]
    assert [*render_pages(columns, pages, width=34)] == [first, ["much-longer-than-be…   20000   10d"]]


NEWER, OLDER = "2026-01-01T12:00:40Z", "2026-01-01T12:00:00Z"


@pytest.mark.parametrize(
    ("status", "beside", "uid", "step"),
    [
        ({"step": 1, "observedAt": OLDER}, {"step": 2, "observedAt": NEWER}, "u-1", 2),
        ({"step": 3, "observedAt": NEWER}, {"step": 2, "observedAt": OLDER}, "u-1", 3),
        (None, {"step": 2, "observedAt": NEWER}, "u-1", 2),
        ({"step": 1, "observedAt": OLDER}, {"step": 2, "observedAt": NEWER}, "u-2", 1),
        ({"step": 1, "observedAt": OLDER}, None, "u-1", 1),
        (
            {"step": 1, "observedAt": OLDER, "updatedAt": OLDER},
            {"step": 1, "observedAt": OLDER, "updatedAt": NEWER, "lastCheckpointStep": 1},
            "u-1",
            1,
        ),
    ],
    ids=["newer", "older", "none in the status", "of a deleted job", "none beside", "the same step"],
)
def test_the_newest_progress_is_shown(
    status: dict[str, Any] | None, beside: dict[str, Any] | None, uid: str, step: int
) -> None:
    job = {"metadata": {"name": "bert", "uid": "u-1"}, "status": {"progress": status} if status else {}}
    object_ = {"metadata": {"ownerReferences": [{"uid": uid}]}, "progress": beside}
    progress = job_state(with_progress(job, object_ if beside else None)).progress
    assert progress is not None
    assert progress.step == step
    if beside and "lastCheckpointStep" in beside:
        assert progress.checkpoint_step == 1
