"""The smoke part of the chaos suite (docs/chaos.md): a few faults on one job, its ledger judged, and nothing left
behind."""

from __future__ import annotations

import pytest

from hack.chaos.faults import FAULTS
from hack.chaos.run import Stage, run_fault
from hack.drivers import ClusterDriver, NodePower

SMOKE = [fault for fault in FAULTS if fault.smoke]


@pytest.mark.timeout(900)  # many times what it takes on an idle machine
def test_no_committed_step_is_lost_and_nothing_is_left_behind(cluster: ClusterDriver, power: NodePower) -> None:
    """Faults one after the other, the last with the operator killed too: the same job goes on from each, and ends
    well."""
    del power  # needed: the suite reaches into nodes
    with Stage(cluster) as stage:
        broken = [
            (fault.name, run_fault(stage, cluster, fault, kill_operator=fault is SMOKE[-1]).broken) for fault in SMOKE
        ]
        stage.end()
    assert not [each for each in broken if each[1]]
    assert not stage.left
