from __future__ import annotations

import pytest
from elasticjob_operator.policies.failures import Cost, judge
from elasticjob_operator.world import Pod, PodPhase

from tests.unit.operator.builders import at, failed_pod, make_pod

FAILED = PodPhase.FAILED


@pytest.mark.parametrize(
    ("pod", "reason", "cost", "exit_code"),
    [
        pytest.param(failed_pod(code=1), "ApplicationError", Cost.COUNTS, 1, id="script raised"),
        pytest.param(failed_pod(code=137), "Signal", Cost.COUNTS, -9, id="killed"),
        pytest.param(failed_pod(code=139), "Signal", Cost.COUNTS, -11, id="segfault"),
        pytest.param(failed_pod(code=137, reason="OOMKilled"), "OutOfMemory", Cost.COUNTS, 137, id="out of memory"),
        pytest.param(failed_pod(code=128, reason="StartError"), "StartError", Cost.COUNTS, 128, id="command not found"),
        pytest.param(failed_pod(code=78), "ApplicationError", Cost.COUNTS, 78, id="agent does not fit the others"),
        pytest.param(failed_pod(code=143), "Terminated", Cost.FREE, 143, id="SIGTERM, left gracefully"),
        pytest.param(failed_pod(code=75), "Terminated", Cost.FREE, 75, id="fenced"),
        pytest.param(failed_pod(code=69), "RendezvousUnavailable", Cost.FREE_BUT_WAIT, 69, id="etcd outage must not burn the budget"),
        pytest.param(
            failed_pod(code=137, disruption="PreemptionByScheduler"),
            "PreemptionByScheduler",
            Cost.FREE,
            None,
            id="preempted is a free retry",
        ),
        pytest.param(failed_pod(code=137, disruption="TerminationByKubelet"), "TerminationByKubelet", Cost.FREE, None, id="node shutdown"),
        pytest.param(make_pod(0, FAILED, reason="Evicted", message="disk pressure"), "Evicted", Cost.FREE, None, id="evicted"),
        pytest.param(make_pod(0, FAILED, reason="NodeLost"), "NodeLost", Cost.FREE, None, id="node lost"),
        pytest.param(failed_pod(code=137, reason="ContainerStatusUnknown"), "ContainerStatusUnknown", Cost.FREE, None, id="node restarted"),
        pytest.param(make_pod(0, FAILED, reason="OutOfcpu"), "OutOfcpu", Cost.FREE_BUT_WAIT, None, id="kubelet refused: no room"),
        pytest.param(make_pod(0, FAILED), "Rejected", Cost.FREE_BUT_WAIT, None, id="never ran, nobody says why"),
    ],
)
def test_what_a_failed_pod_costs(pod: Pod, reason: str, cost: Cost, exit_code: int | None) -> None:
    found = judge(pod)
    assert (found.reason, found.cost, found.exit_code) == (reason, cost, exit_code)
    assert found.detail


def test_time_is_when_the_container_ended() -> None:
    assert judge(failed_pod(at=-7)).time == at(-7)
