"""The benchmark of recovery measures what it says: one short run, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recovery import scenarios
from benchmarks.recovery.report import Row
from benchmarks.recovery.systems import SYSTEMS
from hack.cluster.output import ClusterError
from hack.cluster.programs import program


@pytest.fixture(autouse=True)
def etcd_is_built() -> None:
    try:
        program("etcd")
    except ClusterError as error:
        pytest.skip(str(error))


@pytest.mark.nightly
@pytest.mark.torch
def test_every_change_is_measured_from_the_event_to_the_next_step(tmp_path: Path) -> None:
    samples = list(scenarios.changes(SYSTEMS["level-1"], tmp_path))
    assert [sample.row for sample in samples] == [
        Row.KILL,
        Row.ALL,
        Row.RESET,
        Row.JOIN,
        Row.LEAVE,
        Row.SILENT,
        Row.COORDINATOR,
    ]
    assert all(sample.value is not None and 0 < sample.value < scenarios.LIMIT for sample in samples)
    assert all(sample.steps_lost is not None and sample.steps_lost <= 25 for sample in samples)
