"""The sampler with the real DataLoader and the real torch.distributed."""

from __future__ import annotations

import datetime
import itertools
import pathlib
from collections import Counter
from typing import Any

import pytest
from elasticjob_runtime.data import ElasticDistributedSampler

pytestmark = pytest.mark.torch


def test_a_data_loader_that_prefetches_loses_nothing() -> None:
    import torch.utils.data

    seen: list[int] = []
    sampler = ElasticDistributedSampler(range(100), 2, 0)
    dataset: Any = range(100)  # duck-typed, as the sampler is
    loader = torch.utils.data.DataLoader[int](dataset, batch_size=5, sampler=sampler, num_workers=2)
    for batch, _ in zip(loader, range(3), strict=False):
        seen += batch.tolist()
        sampler.advance(10)
    assert sampler.consumed == 30
    other = ElasticDistributedSampler(range(100), 2, 1)
    seen += list(other)[:15]
    alone = ElasticDistributedSampler(range(100), 1, 0)
    alone.load_state_dict(sampler.state_dict())
    seen += list(alone)
    assert sorted(seen) == list(range(100))


def test_a_data_loader_with_a_batch_sampler_takes_each_sample_once() -> None:
    import torch.utils.data

    dataset: Any = range(85)
    samplers = [ElasticDistributedSampler(dataset, 4, rank) for rank in range(4)]
    loaders = [
        torch.utils.data.DataLoader[int](
            dataset, batch_sampler=sampler.batch_sampler(12), num_workers=1, persistent_workers=True
        )
        for sampler in samplers
    ]
    for epoch in range(2):
        seen: list[int] = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for batches in zip(*loaders, strict=True):
            seen += itertools.chain.from_iterable(batch.tolist() for batch in batches)
            for sampler in samplers:
                sampler.advance()
        assert sorted(seen) == list(range(85))


def test_torchs_own_sampler_loses_and_repeats_a_quarter_of_the_data() -> None:
    """The figure in our documents: four ranks that become three after 500 of 1000 samples."""
    from torch.distributed.elastic.utils.data import elastic_distributed_sampler

    sampler: Any = elastic_distributed_sampler.ElasticDistributedSampler  # not a generic class in torch 2.7
    before = [list(sampler(range(1000), 4, rank))[:125] for rank in range(4)]
    after = [list(sampler(range(1000), 3, rank, start_index=500)) for rank in range(3)]
    counts = Counter(itertools.chain.from_iterable(before + after))
    assert 1000 - len(counts) == 252
    assert counts.total() - len(counts) == 253, "one of them fills up the last turn"


def test_rank_and_world_come_from_the_process_group(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ElasticDistributedSampler(range(10)).rank == 3
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=datetime.timedelta(seconds=30)
    )
    try:
        sampler = ElasticDistributedSampler(range(10))
        assert (sampler.rank, sampler.num_replicas) == (0, 1)
    finally:
        dist.destroy_process_group()
