from __future__ import annotations

import dataclasses

import pytest
from elasticjob_api import Backoff, Failure, FailurePolicy, FailureRule, Restarts, RuleAction
from elasticjob_operator.policies.failures import classify_failure
from elasticjob_operator.policies.replacement import closes_rendezvous, replacement
from elasticjob_operator.policies.restart_budget import Budget
from elasticjob_operator.state import ContainerEnd, Pod, PodPhase

from tests.unit.operator.builders import NOW, at, failed_pod, make_job, make_pod

COUNTED = Failure(worker="digits-worker-0", reason="ApplicationError", time=NOW)
QUICK = -5.0
"""Started 5 s before it failed."""


@pytest.mark.parametrize(
    ("pod", "restarts", "counted", "after", "expected"),
    [
        pytest.param(failed_pod(), 1, None, 0, (False, None), id="not counted yet: must be in status first"),
        pytest.param(failed_pod(), 1, COUNTED, 0, (True, None), id="first failure: at once"),
        pytest.param(failed_pod(started=QUICK), 2, COUNTED, 0, (False, 1), id="second quick failure: after 1 s"),
        pytest.param(failed_pod(started=QUICK), 2, COUNTED, 1, (True, None), id="... and then it goes"),
        pytest.param(failed_pod(started=QUICK), 5, COUNTED, 0, (False, 8), id="crash loop: the wait doubles"),
        pytest.param(failed_pod(started=QUICK), 5000, COUNTED, 0, (False, 300), id="but is bounded"),
        pytest.param(failed_pod(started=-3600), 5, COUNTED, 0, (True, None), id="trained for an hour: no crash loop"),
        pytest.param(failed_pod(code=75), 0, None, 0, (True, None), id="fenced: at once, uncounted"),
        pytest.param(
            failed_pod(at=3600),
            1,
            COUNTED.model_copy(update={"pod_uid": "pod-0-0"}),
            0,
            (True, None),
            id="clock of the node an hour ahead: at once too",
        ),
        pytest.param(failed_pod(disruption="EvictionByEvictionAPI"), 0, None, 0, (True, None), id="evicted: at once"),
        pytest.param(
            make_pod(0, PodPhase.FAILED, reason="OutOfcpu", created=0),
            0,
            None,
            0,
            (False, 10),
            id="rejected by the kubelet: after a delay",
        ),
        pytest.param(failed_pod(code=69), 0, None, 10, (True, None), id="etcd was unreachable: after a delay"),
    ],
)
def test_when_a_failed_pod_is_replaced(
    pod: Pod, restarts: int, counted: Failure | None, after: float, expected: tuple[bool, float | None]
) -> None:
    failure, budget = classify_failure(pod), Budget(restarts=Restarts(total=restarts))
    found = replacement(pod, failure, FailurePolicy(), budget=budget, counted=counted, now=at(after))
    delete, again = expected
    assert (found.delete, found.requeue_at) == (delete, at(again) if again is not None else None)
    assert found.reason


@pytest.mark.parametrize(
    ("pod", "restarts", "wait"),
    [
        pytest.param(failed_pod(started=QUICK), 2, 10, id="the first wait"),
        pytest.param(failed_pod(started=QUICK), 3, 20, id="doubles"),
        pytest.param(failed_pod(started=QUICK), 9, 60, id="is bounded"),
        pytest.param(failed_pod(started=QUICK, code=42), 0, 10, id="ignored by a rule, in a crash loop: after a delay"),
        pytest.param(failed_pod(started=-3600, code=42), 0, None, id="ignored by a rule"),
    ],
)
def test_the_backoff_is_that_of_the_job(pod: Pod, restarts: int, wait: float | None) -> None:
    rule = FailureRule(exit_codes=(42,), action=RuleAction.IGNORE)
    policy = FailurePolicy(rules=(rule,), backoff=Backoff(initial_seconds=10, max_seconds=60))
    failure, budget = classify_failure(pod, policy.rules), Budget(restarts=Restarts(total=restarts))
    found = replacement(pod, failure, policy, budget=budget, counted=COUNTED, now=NOW)
    assert (found.delete, found.requeue_at) == ((True, None) if wait is None else (False, at(wait)))


_INIT = dataclasses.replace(make_pod(0, PodPhase.FAILED), init_end=ContainerEnd(exit_code=1, container="download"))


@pytest.mark.parametrize(
    ("pod", "backend", "expected"),
    [
        pytest.param(failed_pod(), "etcd-v2", True, id="torchrun gave up"),
        pytest.param(failed_pod(), "c10d", True, id="with worker pod 0's store: as long as that pod lives"),
        pytest.param(failed_pod(), "etcd-v3", False, id="ours is never closed by one agent"),
        pytest.param(failed_pod(code=137), "etcd-v2", False, id="killed: torchrun could not close it"),
        pytest.param(failed_pod(code=137, reason="OOMKilled"), "etcd-v2", False, id="out of memory: killed too"),
        pytest.param(failed_pod(code=143), "etcd-v2", False, id="after SIGTERM, torchrun leaves it open"),
        pytest.param(failed_pod(disruption="EvictionByEvictionAPI"), "etcd-v2", False, id="evicted: SIGTERM"),
        pytest.param(failed_pod(reason="ContainerStatusUnknown"), "etcd-v2", False, id="vanished with its node"),
        pytest.param(make_pod(0, PodPhase.FAILED, reason="OutOfcpu"), "etcd-v2", False, id="never started"),
        pytest.param(_INIT, "etcd-v2", False, id="an init container failed: torchrun never ran"),
    ],
)
def test_which_failures_close_the_rendezvous_of_torchrun(pod: Pod, backend: str, expected: bool) -> None:
    job = make_job(spec={"rendezvous": {"backend": backend}})
    assert closes_rendezvous(job, classify_failure(pod)) is expected
