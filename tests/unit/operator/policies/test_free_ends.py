"""How long free replacements of one index wait when they follow each other."""

from __future__ import annotations

from collections.abc import Sequence

from elasticjob_api import FailureRule, FreeEnds, RuleAction, Status
from elasticjob_operator.policies.failures import classify_failure
from elasticjob_operator.policies.free_ends import MOST, delay_seconds, free_ends
from elasticjob_operator.state import Pod, PodPhase

from tests.unit.operator.builders import at, failed_pod, make_job, make_pod
from tests.unit.operator.tables import table

IGNORE = (FailureRule(exit_codes=(42,), action=RuleAction.IGNORE),)


def rejected(seconds: float) -> Pod:
    return make_pod(0, PodPhase.FAILED, reason="OutOfcpu", created=seconds)


def evicted(seconds: float, ran: float = 20) -> Pod:
    return failed_pod(0, at=seconds, started=seconds - ran, created=seconds - ran, disruption="TerminationByKubelet")


def delays(pods: Sequence[Pod]) -> list[float]:
    """Of each pod, one after the other; each is looked at twice, before and after it is due."""
    known: tuple[FreeEnds, ...] = ()
    found = []
    for pod in pods:
        failure = classify_failure(pod, IGNORE)
        for _ in range(2):
            known = free_ends(make_job(status=Status(free_ends=known)), [(pod, failure)], failure.time)
        found.append(delay_seconds(pod, failure, known))
    return found


@table(
    "pods, expected",
    {
        "rejected": ([rejected(400 * n) for n in range(8)], [10, 20, 40, 80, 160, 300, 300, 300]),
        "evicted when young": ([evicted(400 * n) for n in range(8)], [0, 10, 20, 40, 80, 160, 300, 300]),
        "trained for minutes between": ([evicted(0), evicted(900, ran=300), evicted(1000)], [0, 0, 0]),
        "an hour apart": ([rejected(0), rejected(3600)], [10, 10]),
        "no etcd for the whole join timeout: it did not train": (
            [failed_pod(0, code=69, at=900 * n, started=900 * n - 600, created=900 * n - 601) for n in range(3)],
            [10, 20, 40],
        ),
        "fenced again and again": (
            [failed_pod(0, code=75, at=60 * n, started=60 * n - 30, created=60 * n - 31) for n in range(3)],
            [0, 10, 20],
        ),
        "ignored by a rule": (
            [failed_pod(0, code=42, at=60 * n, started=60 * n - 30, created=60 * n - 31) for n in range(3)],
            [10, 20, 40],
        ),
        "ignored by a rule, after a minute": ([failed_pod(0, code=42, at=0, started=-90, created=-90)], [0]),
    },
)
def test_free_replacements_back_off_to_five_minutes(pods: list[Pod], expected: list[float]) -> None:
    assert delays(pods) == expected


def test_failures_that_count_are_not_free_ends() -> None:
    pod = failed_pod(0)
    assert free_ends(make_job(), [(pod, classify_failure(pod))], at(0)) == ()


def test_thousands_of_rejected_pods_fit_into_status_and_still_back_off() -> None:
    known: tuple[FreeEnds, ...] = ()
    for attempt in range(3):
        pods = [make_pod(n, PodPhase.FAILED, reason="OutOfcpu", created=60 * attempt) for n in range(1000)]
        failed = [(pod, classify_failure(pod)) for pod in pods]
        known = free_ends(make_job(status=Status(free_ends=known)), failed, at(60 * attempt))
    assert len(known) == MOST
    assert {delay_seconds(pod, failure, known) for pod, failure in failed} == {40}
