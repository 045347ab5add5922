from __future__ import annotations

import dataclasses

import pytest
from elasticjob_api import Backoff, Failure, FailurePolicy, FailureRule, Restarts, RuleAction
from elasticjob_operator.policies.failures import classify_failure
from elasticjob_operator.policies.replacement import closes_rendezvous, replacement
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.state import ContainerEnd, Pod, PodPhase

from tests.unit.operator.builders import NOW, at, failed_pod, make_job, make_pod
from tests.unit.operator.tables import table

COUNTED = Failure(worker="digits-worker-0", reason="ApplicationError", time=NOW)
QUICK = -5.0
"""Started 5 s before it failed."""


@table(
    "pod, restarts, counted, after, expected",
    {
        "not counted yet: must be in status first": (failed_pod(), 1, None, 0, (False, None)),
        "first failure: at once": (failed_pod(), 1, COUNTED, 0, (True, None)),
        "second quick failure: after 1 s": (failed_pod(started=QUICK), 2, COUNTED, 0, (False, 1)),
        "... and then it goes": (failed_pod(started=QUICK), 2, COUNTED, 1, (True, None)),
        "crash loop: the wait doubles": (failed_pod(started=QUICK), 5, COUNTED, 0, (False, 8)),
        "but is bounded": (failed_pod(started=QUICK), 5000, COUNTED, 0, (False, 300)),
        "trained for an hour: no crash loop": (failed_pod(started=-3600), 5, COUNTED, 0, (True, None)),
        "fenced: at once, uncounted": (failed_pod(code=75), 0, None, 0, (True, None)),
        "clock of the node an hour ahead: at once too": pytest.param(
            failed_pod(at=3600), 1, COUNTED.model_copy(update={"pod_uid": "pod-0-0"}), 0, (True, None)
        ),
        "evicted: at once": (failed_pod(disruption="EvictionByEvictionAPI"), 0, None, 0, (True, None)),
        "rejected by the kubelet: after a delay": pytest.param(
            make_pod(0, PodPhase.FAILED, reason="OutOfcpu", created=0), 0, None, 0, (False, 10)
        ),
        "etcd was unreachable: after a delay": (failed_pod(code=69), 0, None, 10, (True, None)),
    },
)
def test_when_a_failed_pod_is_replaced(
    pod: Pod, restarts: int, counted: Failure | None, after: float, expected: tuple[bool, float | None]
) -> None:
    failure, budget = classify_failure(pod), Budget(restarts=Restarts(total=restarts))
    found = replacement(pod, failure, FailurePolicy(), budget=budget, counted=counted, now=at(after))
    delete, again = expected
    assert (found.delete, found.requeue_at) == (delete, at(again) if again is not None else None)
    assert found.reason


@table(
    "pod, restarts, wait",
    {
        "the first wait": (failed_pod(started=QUICK), 2, 10),
        "doubles": (failed_pod(started=QUICK), 3, 20),
        "is bounded": (failed_pod(started=QUICK), 9, 60),
        "ignored by a rule, in a crash loop: after a delay": (failed_pod(started=QUICK, code=42), 0, 10),
        "ignored by a rule": (failed_pod(started=-3600, code=42), 0, None),
    },
)
def test_the_backoff_is_that_of_the_job(pod: Pod, restarts: int, wait: float | None) -> None:
    rule = FailureRule(exit_codes=(42,), action=RuleAction.IGNORE)
    policy = FailurePolicy(rules=(rule,), backoff=Backoff(initial_seconds=10, max_seconds=60))
    failure, budget = classify_failure(pod, policy.rules), Budget(restarts=Restarts(total=restarts))
    found = replacement(pod, failure, policy, budget=budget, counted=COUNTED, now=NOW)
    assert (found.delete, found.requeue_at) == ((True, None) if wait is None else (False, at(wait)))


_INIT = dataclasses.replace(make_pod(0, PodPhase.FAILED), init_end=ContainerEnd(exit_code=1, container="download"))


@table(
    "pod, backend, expected",
    {
        "torchrun gave up": (failed_pod(), "etcd-v2", True),
        "with worker pod 0's store: as long as that pod lives": (failed_pod(), "c10d", True),
        "ours is never closed by one agent": (failed_pod(), "etcd-v3", False),
        "killed: torchrun could not close it": (failed_pod(code=137), "etcd-v2", False),
        "out of memory: killed too": (failed_pod(code=137, reason="OOMKilled"), "etcd-v2", False),
        "after SIGTERM, torchrun leaves it open": (failed_pod(code=143), "etcd-v2", False),
        "evicted: SIGTERM": (failed_pod(disruption="EvictionByEvictionAPI"), "etcd-v2", False),
        "vanished with its node": (failed_pod(reason="ContainerStatusUnknown"), "etcd-v2", False),
        "never started": (make_pod(0, PodPhase.FAILED, reason="OutOfcpu"), "etcd-v2", False),
        "an init container failed: torchrun never ran": (_INIT, "etcd-v2", False),
    },
)
def test_which_failures_close_the_rendezvous_of_torchrun(pod: Pod, backend: str, expected: bool) -> None:
    job = make_job(spec={"rendezvous": {"backend": backend}})
    assert closes_rendezvous(job, classify_failure(pod)) is expected
