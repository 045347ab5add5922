"""Snapshots outlive the worker processes that made them."""

from __future__ import annotations

import os
import tempfile

import pytest
from elasticjob_runtime.agent.snapshots import Snapshot, Snapshots, replaces

from hack.support import eventually


def snapshot(round_number: int, step: int, *fds: int) -> Snapshot:
    return Snapshot(round=round_number, step=step, fds=fds)


@pytest.mark.parametrize(
    ("kept", "offered", "replaced"),
    [
        (None, snapshot(1, 1), True),
        (snapshot(1, 10), snapshot(1, 20), True),
        (snapshot(1, 10), snapshot(1, 10), True),
        (snapshot(1, 20), snapshot(1, 10), False),
        (snapshot(1, 20), snapshot(2, 10), True),
        (snapshot(2, 10), snapshot(1, 20), False),
    ],
    ids=[
        "the first",
        "a later step",
        "the same again",
        "an earlier step",
        "a later round at an earlier step",
        "an earlier round",
    ],
)
def test_the_latest_snapshot_of_the_latest_round_is_kept(
    kept: Snapshot | None, offered: Snapshot, replaced: bool
) -> None:
    assert replaces(kept, offered) is replaced


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_snapshot_that_is_replaced_closes_its_descriptors() -> None:
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 - closed by what is tested
    old, new, late = (os.dup(file.fileno()) for file in files)
    snapshots = Snapshots()
    assert snapshots.keep(0, snapshot(1, 1, old))
    assert snapshots.keep(0, snapshot(1, 2, new))
    assert not snapshots.keep(0, snapshot(1, 1, late))
    eventually(lambda: not is_open(old), what="the memory of the replaced one is freed in a thread")
    assert (is_open(new), is_open(late)) == (True, True), "a rejected snapshot keeps its descriptors"
    assert snapshots.of(1) is None
    snapshots.close()
    assert not is_open(new)
    os.close(late)
