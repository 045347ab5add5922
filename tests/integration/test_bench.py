"""The benchmarks measure what they say: one short run of each, with real processes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.etcd import Etcd
from benchmarks.random_run.__main__ import run
from benchmarks.recovery.job import Job
from benchmarks.recovery.scenarios import SCENARIOS
from benchmarks.recovery.systems import SYSTEMS
from benchmarks.rendezvous.__main__ import measure
from hack.cluster.output import ClusterError
from hack.cluster.programs import program


@pytest.fixture(autouse=True)
def etcd_is_built() -> None:
    try:
        program("etcd")
    except ClusterError as error:
        pytest.skip(str(error))


@pytest.mark.torch
def test_a_crash_is_measured_from_the_kill_to_the_next_step(tmp_path: Path) -> None:
    with Etcd(tmp_path) as etcd, Job(SYSTEMS["elasticrun"], tmp_path / "job", etcd.endpoint) as job:
        figures = SCENARIOS["crash"](job)
        workers = job.workers()
    cost = figures["worker crash"]
    assert cost.first_step is not None
    assert cost.stall is not None
    assert 0 < cost.stall <= cost.first_step + 1
    assert cost.steps_lost in (0, 1)
    assert sorted(worker.rank for worker in workers) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_members_get_ranks_and_new_ones_after_a_loss(tmp_path: Path) -> None:
    result = measure(members=5, processes=2, folder=tmp_path)
    assert result.start.seconds > 0
    assert result.start.etcd.puts == 1 + 5 + 5 + 5 + 1  # secret, members, each as the last to join, ranks, plan
    assert result.loss.etcd.puts == 4 + 1


@pytest.mark.torch
def test_a_training_with_random_faults_is_the_undisturbed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, seconds=12, every=3, chance=random.Random(4))
    assert "faults," in capsys.readouterr().out
