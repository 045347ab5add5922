"""The smoke part of the chaos suite (docs/bench/chaos.md): a few faults on one job, and an audit of its ledger."""

from __future__ import annotations

import pytest

from hack.chaos.faults import FAULTS
from hack.chaos.run import Stage, run_fault
from hack.drivers import ClusterDriver, NodePower

pytestmark = [pytest.mark.alone, pytest.mark.nightly]

SMOKE = [fault for fault in FAULTS if fault.smoke]


@pytest.mark.timeout(900)  # many times what it takes on an idle machine
def test_faults_lose_no_committed_step_and_leave_nothing_behind(cluster: ClusterDriver, power: NodePower) -> None:
    """The same job recovers from one fault after the other, the last one with the operator killed too, and succeeds."""
    del power  # needed: the suite reaches into nodes
    with Stage(cluster) as stage:
        broken = [
            (fault.name, run_fault(stage, cluster, fault, kill_operator=fault is SMOKE[-1]).broken) for fault in SMOKE
        ]
        stage.end()
    assert not [item for item in broken if item[1]]
    assert not stage.left
