"""When a job fails because its script cannot even begin."""

from __future__ import annotations

import dataclasses
from typing import Any

from elasticjob_api import Change, ChangeType, ElasticJob, History, Progress, RendezvousStatus, Status, StoredHistory
from elasticjob_operator.policies.completion import outcome
from elasticjob_operator.policies.first_step import fails_fast
from elasticjob_operator.policies.restart_budget import Budget, count_restarts
from elasticjob_operator.state import Pod
from elasticjob_runtime.contract import SCRIPT_FAILS

from tests.unit.operator.builders import (
    NOW,
    UID,
    at,
    failed_pod,
    make_job,
    make_outcome,
    make_status,
    make_view,
    with_failures,
)
from tests.unit.operator.tables import table


def job(status: Status | None = None, **policy: Any) -> ElasticJob:
    return make_job(status=status, spec={"failurePolicy": {"maxRestarts": 3, **policy}})


def in_run(run: int, *moments: float) -> Status:
    """With rounds of the first run that began at these times."""
    changes = [Change(time=at(moment), type=ChangeType.ROUND.value, reason="Start", run=1) for moment in moments]
    history = StoredHistory(History(changes=tuple(changes)).to_api())
    return make_status(history=history, rendezvous=RendezvousStatus(id=f"{UID}-{run}"))


@table(
    "status, policy, expected",
    {
        "the default": (None, {}, True),
        "not wanted": (None, {"beforeFirstStep": "Restart"}, False),
        "a step was reported": (make_status(progress=Progress(step=0)), {}, False),
        "a rule ignores exceptions": (None, {"rules": [{"exitCodes": [1], "action": "Ignore"}]}, False),
        "a rule about others": (None, {"rules": [{"exitCodes": [137], "action": "Ignore"}]}, True),
        "resumed after 50 s of training": (in_run(2, -100, -50), {}, True),
        "resumed after a minute of training": (in_run(2, -160, -50), {}, False),
    },
)
def test_agents_may_end_a_job_that_has_never_trained(
    status: Status | None, policy: dict[str, Any], expected: bool
) -> None:
    assert fails_fast(job(status, **policy)) is expected


def passes(*pods: Pod, status: Status | None = None, **policy: Any) -> Budget:
    """These pods fail one after the other."""
    status = status or make_status()
    for pod in pods:
        found = count_restarts(job(status, **policy), make_view(), with_failures(pod), NOW)
        status = status.model_copy(update={"restarts": found.restarts, "last_failure": found.last_failure})
    return found


def attempt(number: int, code: int) -> Pod:
    began = 20.0 * number - 100
    return failed_pod(0, code=code, created=began, started=began + 1, at=began + 3, incarnation=number)


@table(
    "codes, status, policy, ends",
    {
        "no such script: never, with this image": ((66,), None, {}, True),
        "wrong flags": ((2, 2), None, {}, True),
        "once": ((2,), None, {}, False),
        "two mistakes": ((2, 1), None, {}, False),
        "the agents decide about exceptions": ((1, 1), None, {}, False),
        "killed": ((137, 137), None, {}, False),
        "it has started before": ((66, 66), make_status(round=1), {}, False),
        "not wanted": ((66, 66), None, {"beforeFirstStep": "Restart"}, False),
    },
)
def test_a_script_that_cannot_be_started_ends_the_job(
    codes: tuple[int, ...], status: Status | None, policy: dict[str, Any], ends: bool
) -> None:
    budget = passes(*(attempt(number, code) for number, code in enumerate(codes)), status=status, **policy)
    found = outcome(job(), make_view(), [], budget, NOW)
    assert (found.status, str(found.reason)) == ((False, "ScriptFails") if ends else (None, "NotFinished"))


def test_a_script_that_does_not_exist_is_named() -> None:
    line = "/s/nofile.py: no such script (in /)"
    pod = attempt(0, 66)
    assert pod.end is not None
    pod = dataclasses.replace(pod, end=dataclasses.replace(pod.end, message=f"elasticrun: {line}"))
    assert line in outcome(job(), make_view(), [], passes(pod), NOW).message


def test_the_end_that_the_agents_report_names_the_exception() -> None:
    view = make_view(outcome=make_outcome("failed", SCRIPT_FAILS, message="rank 0 on a failed: ImportError: x"))
    found = outcome(job(), view, [], Budget(), NOW)
    assert (found.status, str(found.reason)) == (False, "ScriptFails")
    assert "in the same way whenever it starts" in found.message
    assert "ImportError: x" in found.message
