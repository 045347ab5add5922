"""Snapshots outlive the worker processes that made them."""

from __future__ import annotations

import os
import tempfile

import pytest
from elasticjob_runtime.agent.snapshots import HeldSnapshots, Snapshot, replaces
from elasticjob_runtime.workers.linux import is_open

from hack.support import eventually


def snapshot(round_number: int, step: int, *fds: int) -> Snapshot:
    return Snapshot(round=round_number, step=step, fds=fds)


@pytest.mark.parametrize(
    ("kept", "offered", "replaced"),
    [
        pytest.param(None, snapshot(1, 1), True, id="the first"),
        pytest.param(snapshot(1, 10), snapshot(1, 20), True, id="a later step"),
        pytest.param(snapshot(1, 10), snapshot(1, 10), True, id="the same again"),
        pytest.param(snapshot(1, 20), snapshot(1, 10), False, id="an earlier step"),
        pytest.param(snapshot(1, 20), snapshot(2, 10), True, id="a later round at an earlier step"),
        pytest.param(snapshot(2, 10), snapshot(1, 20), False, id="an earlier round"),
    ],
)
def test_the_latest_snapshot_of_the_latest_round_is_kept(
    kept: Snapshot | None, offered: Snapshot, replaced: bool
) -> None:
    assert replaces(kept, offered) is replaced


def test_a_snapshot_that_is_replaced_closes_its_descriptors() -> None:
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 - closed by what is tested
    old, new, late = (os.dup(file.fileno()) for file in files)
    snapshots = HeldSnapshots()
    assert snapshots.keep(0, snapshot(1, 1, old))
    assert snapshots.keep(0, snapshot(1, 2, new))
    assert not snapshots.keep(0, snapshot(1, 1, late))
    eventually(lambda: not is_open(old), what="the memory of the replaced one is freed in a thread")
    assert (is_open(new), is_open(late)) == (True, True), "a rejected snapshot keeps its descriptors"
    assert snapshots.of(1) is None
    snapshots.close()
    assert not is_open(new)
    os.close(late)
