"""What the ranks of a process group tell each other."""

from __future__ import annotations

import os
import pathlib

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401 the backend
from elasticjob_runtime.training.sharded import ranks

from tests.unit.runtime.training.sharded.worlds import run

pytestmark = pytest.mark.timeout(60)


def talk(folder: str) -> tuple[list[int], str, list[int]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("fake", store=dist.FileStore(f"{folder}/fake", size), rank=rank, world_size=size)  # type: ignore[attr-defined]
    ranks.talk_over_gloo()
    found = ranks.gather(rank), ranks.from_first(lambda: f"rank {rank}"), ranks.lowest(rank, -rank)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/gloo", size), rank=rank, world_size=size)  # type: ignore[attr-defined]
    ranks.talk_over_gloo()
    assert ranks.gather(rank) == found[0], "a default group that has gloo is enough"
    return found


def test_ranks_whose_process_group_has_no_gloo_tell_each_other_values_over_one_of_their_own(
    tmp_path: pathlib.Path,
) -> None:
    """A group that does nothing stands for NCCL."""
    assert run(2, talk, tmp_path, os.fspath(tmp_path)) == [([0, 1], "rank 0", [0, -1])] * 2
