from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import FailureRule, RuleAction
from elasticjob_operator.policies.failures import Cost, action_for, classify_failure
from elasticjob_operator.state import Pod, PodPhase

from tests.unit.operator.builders import at, ended, failed_pod, make_pod
from tests.unit.operator.tables import table

FAILED = PodPhase.FAILED


def init_failed(code: int, reason: str = "Error", **pod: Any) -> Pod:
    end = dataclasses.replace(ended(code, reason=reason), container="download")
    return dataclasses.replace(make_pod(0, FAILED, **pod), init_end=end)


@table(
    "pod, reason, cost, exit_code",
    {
        "script raised": (failed_pod(code=1), "ApplicationError", Cost.COUNTS, 1),
        "killed": (failed_pod(code=137), "Signal", Cost.COUNTS, -9),
        "segfault": (failed_pod(code=139), "Signal", Cost.COUNTS, -11),
        "out of memory": (failed_pod(code=137, reason="OOMKilled"), "OutOfMemory", Cost.COUNTS, 137),
        "command not found": (failed_pod(code=128, reason="StartError"), "StartError", Cost.COUNTS, 128),
        "agent does not fit the others": (failed_pod(code=78), "ApplicationError", Cost.COUNTS, 78),
        "SIGTERM of a liveness probe, or of the script itself": (failed_pod(code=143), "Terminated", Cost.COUNTS, 143),
        "SIGINT": (failed_pod(code=130), "Terminated", Cost.COUNTS, 130),
        "drained": (failed_pod(code=143, disruption="EvictionByEvictionAPI"), "EvictionByEvictionAPI", Cost.FREE, None),
        "fenced, however young it is": (failed_pod(code=75, started=-9), "Fenced", Cost.FREE, 75),
        "exit code of containerd after a reboot": pytest.param(
            failed_pod(code=255, reason="Unknown"), "ContainerStatusUnknown", Cost.FREE, None
        ),
        "sys.exit(-1), and no signal 127": (failed_pod(code=255), "ApplicationError", Cost.COUNTS, 255),
        "the last signal": (failed_pod(code=192), "Signal", Cost.COUNTS, -64),
        "no signal": (failed_pod(code=193), "ApplicationError", Cost.COUNTS, 193),
        "etcd outage must not burn the budget": (failed_pod(code=69), "RendezvousUnavailable", Cost.FREE_BUT_WAIT, 69),
        "a bad replacement must not burn the budget of those who train": pytest.param(
            failed_pod(code=76), "CannotJoin", Cost.FREE_BUT_WAIT, 76
        ),
        "a bad machine must not burn the budget of those who train": pytest.param(
            failed_pod(code=79), "SuspectNode", Cost.FREE_BUT_WAIT, 79
        ),
        "preempted is a free retry": pytest.param(
            failed_pod(code=137, disruption="PreemptionByScheduler"), "PreemptionByScheduler", Cost.FREE, None
        ),
        "node shutdown": pytest.param(
            failed_pod(code=137, disruption="TerminationByKubelet"), "TerminationByKubelet", Cost.FREE, None
        ),
        "evicted under the node's pressure": (
            make_pod(0, FAILED, reason="Evicted", message="low on memory", disruption="TerminationByKubelet"),
            "TerminationByKubelet",
            Cost.FREE,
            None,
        ),
        "evicted for its own emptyDir": (
            make_pod(0, FAILED, reason="Evicted", message="Usage of EmptyDir volume exceeds the limit"),
            "Evicted",
            Cost.COUNTS,
            None,
        ),
        "node lost": (make_pod(0, FAILED, reason="NodeLost"), "NodeLost", Cost.FREE, None),
        "node restarted": pytest.param(
            failed_pod(code=137, reason="ContainerStatusUnknown"), "ContainerStatusUnknown", Cost.FREE, None
        ),
        "kubelet refused: no room": (make_pod(0, FAILED, reason="OutOfcpu"), "OutOfcpu", Cost.FREE_BUT_WAIT, None),
        "never ran, no reason": (make_pod(0, FAILED), "Rejected", Cost.FREE_BUT_WAIT, None),
        "init container: exit code": (init_failed(3), "InitContainerFailed", Cost.COUNTS, 3),
        "init container: a code of agents": (init_failed(75), "InitContainerFailed", Cost.COUNTS, 75),
        "init container: SIGTERM": (init_failed(143), "Signal", Cost.COUNTS, -15),
        "init container: out of memory": (init_failed(137, "OOMKilled"), "OutOfMemory", Cost.COUNTS, 137),
        "evicted in its init container": pytest.param(
            init_failed(137, disruption="EvictionByEvictionAPI"), "EvictionByEvictionAPI", Cost.FREE, None
        ),
        "node restarted during init": (init_failed(255, "Unknown"), "ContainerStatusUnknown", Cost.FREE, None),
    },
)
def test_what_a_failed_pod_costs(pod: Pod, reason: str, cost: Cost, exit_code: int | None) -> None:
    found = classify_failure(pod)
    assert (found.reason, found.cost, found.exit_code) == (reason, cost, exit_code)
    assert found.detail


def test_a_failed_init_container_is_named_and_its_exit_code_matches_rules() -> None:
    rules = [FailureRule(exit_codes=(3,), action=RuleAction.FAIL)]
    pod = init_failed(3)
    assert pod.init_end is not None
    said = dataclasses.replace(pod.init_end, message="looking\nno such dataset\n")
    failure = classify_failure(dataclasses.replace(pod, init_end=said), rules)
    assert failure.detail == "init container download: exit code 3: no such dataset"
    assert (failure.ends_job, failure.before_training, failure.time) == (True, True, at(0))


def test_the_time_of_a_failure_is_the_end_of_the_container() -> None:
    assert classify_failure(failed_pod(at=-7)).time == at(-7)


KILLED = FailureRule(exit_codes=(137,), action=RuleAction.IGNORE)
BOTH = FailureRule(exit_codes=(1,), reasons=("ApplicationError",), action=RuleAction.FAIL)
ANY_OOM = FailureRule(reasons=("OutOfMemory",), action=RuleAction.RESTART)


@table(
    "rules, exit_code, reason, expected",
    {
        "no rules": ((), 1, "ApplicationError", None),
        "by exit code": ((KILLED,), 137, "OutOfMemory", RuleAction.IGNORE),
        "a signal as a shell shows it": ((KILLED,), -9, "Signal", RuleAction.IGNORE),
        "without an exit code": ((KILLED,), None, "Evicted", None),
        "by reason": ((ANY_OOM,), 1, "OutOfMemory", RuleAction.RESTART),
        "both match": ((BOTH,), 1, "ApplicationError", RuleAction.FAIL),
        "only one of both matches": ((BOTH,), 1, "Other", None),
        "the first that matches": ((ANY_OOM, KILLED), 137, "OutOfMemory", RuleAction.RESTART),
    },
)
def test_the_first_matching_rule_applies(
    rules: tuple[FailureRule, ...], exit_code: int | None, reason: str, expected: RuleAction | None
) -> None:
    assert action_for(rules, exit_code, reason) == expected
