"""`ElasticDistributedSampler`: which rank reads which sample while the number of workers changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

from elasticjob_runtime.data import dealing
from elasticjob_runtime.data.permutation import Permutation


class ElasticDistributedSampler:
    """A distributed sampler for a number of workers that may change within an epoch.

    Its state is one number: how many samples of the epoch all ranks together have consumed. Every rank computes the
    same order of the whole data set from (seed, epoch), and ranks take turns in it: rank r of W gets the indices at
    consumed + r, consumed + r + W, and so on. So the consumed samples are always a prefix of the order, and the rest
    can be distributed to any number of ranks. torch's DistributedSampler shuffles again after a change: going from 4 to
    3 ranks after 500 of 1000 samples, it loses 252 of them and repeats 252.

    There are three ways to use it. In all of them, call `advance` after each optimizer step: it counts what ALL ranks
    trained on. Samples that a data loader has only prefetched do not count.

    With torch's DataLoader, and a global batch that the ranks share, so that the training does not depend on their
    number:

        loader = DataLoader(dataset, batch_sampler=sampler.batch_sampler(64))
        for inputs, targets in loader:
            loss = cross_entropy(model(inputs), targets) * sampler.loss_weight
            ...
            sampler.advance()

    Without a DataLoader:

        for indices in sampler.batches(64):
            ...                                 # train on dataset[i] for i in indices
            sampler.advance()

    As torch's DistributedSampler, with a batch size per rank:

        loader = DataLoader(dataset, batch_size=16, sampler=sampler)
        for inputs, targets in loader:
            ...
            sampler.advance(16 * sampler.num_replicas)

    In all of them, all ranks take the same number of steps, because DDP would hang otherwise. They differ at the end of
    an epoch:

    - `batch_sampler`: each sample comes exactly once, and every rank has at least one in each batch. If the last batch
      is too short for that, the one before it is shortened in its favour. Only if fewer samples than ranks are left
      altogether, a rank without a sample gets one with `loss_weight` 0. With drop_last=True, a short last batch is left
      out.
    - `batches`: each sample comes exactly once, and a rank may get an empty list in the last batch.
    - Iteration: with drop_last=False, up to W - 1 samples from the start of the order fill the last turn. With
      drop_last=True, up to W - 1 samples are left out.

    Shares of a global batch differ by at most one sample. DDP averages over ranks; multiply each rank's mean loss by
    `loss_weight`, and the result is the mean over samples.

    `advance` stops at the end of the epoch. `set_epoch(n)` begins epoch n, or continues it if it is the current one.
    After the end of an epoch, the sampler is empty until `set_epoch` begins the next.

    Arguments, as of torch's DistributedSampler:

    - dataset: anything with a length.
    - num_replicas, rank: by default torch.distributed's if it is initialized, else WORLD_SIZE and RANK from the
      environment, else 1 and 0.
    - start_index: samples of epoch 0 already consumed, for scripts that store this number themselves.
    - shuffle: False yields 0, 1, 2 ... in every epoch.
    - seed: must be the same on all ranks.
    - drop_last: see above.

    Raises ValueError if the rank or start_index is out of range.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        start_index: int = 0,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        here, there_are = _current_world()
        self.dataset = dataset
        self.num_replicas = there_are if num_replicas is None else num_replicas
        self.rank = here if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"rank {self.rank} is out of range: expected 0 ... {self.num_replicas - 1} for "
                f"num_replicas={self.num_replicas}"
            )
        if not 0 <= start_index <= len(dataset):
            raise ValueError(
                f"start_index {start_index} is out of range: expected 0 ... {len(dataset)}, the size of the data set"
            )
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self._epoch = 0
        self._consumed = start_index
        self._next_batch: Callable[[int], int] | None = None
        """Number of samples left -> size of the next global batch. None: it is not known."""

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def consumed(self) -> int:
        """How many samples of this epoch all ranks together have trained on."""
        return self._consumed

    def __len__(self) -> int:
        """How many indices iteration yields now, the same on all ranks."""
        left = len(self.dataset) - self._consumed
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """Yields this rank's share of the rest of the epoch, for a DataLoader."""
        order = self._order()
        first = self._consumed + self.rank
        for turn in range(len(self)):
            yield order[(first + turn * self.num_replicas) % len(order)]

    def batches(self, global_batch_size: int) -> Iterator[list[int]]:
        """Yields this rank's share of each global batch in the rest of the epoch; it may be empty in the last one. Call
        `advance` after each optimizer step."""
        _check_batch_size(global_batch_size)
        self._next_batch = lambda left: min(left, global_batch_size)
        return self._shares(self._next_batch, fill=False)

    def batch_sampler(self, global_batch_size: int) -> BatchSampler:
        """For `DataLoader(batch_sampler=...)`: this rank's share of each global batch in the rest of the epoch. Call
        `advance` after each optimizer step."""
        _check_batch_size(global_batch_size)
        batches = BatchSampler(self, global_batch_size)
        self._next_batch = batches.next_batch
        return batches

    @property
    def loss_weight(self) -> float:
        """By what to multiply the mean loss of this rank's share of the current global batch, before `advance`, so that
        DDP's mean over ranks is the mean over samples: 1.0 if all shares have the same size."""
        start, end = self._consumed, self._end_of_batch()
        own = len(dealing.share(start, end, self.rank, self.num_replicas))
        return own * self.num_replicas / (end - start) if end > start else 1.0

    def advance(self, samples: int | None = None) -> None:
        """Counts `samples` as consumed by all ranks together, up to the end of the epoch. None: the current global
        batch of `batches` or `batch_sampler`, whichever was called last."""
        if samples is None:
            self._consumed = self._end_of_batch()
            return
        if samples < 0:
            raise ValueError(f"samples must be 0 or more: got {samples}")
        self._consumed = min(self._consumed + samples, len(self.dataset))

    def _end_of_batch(self) -> int:
        if self._next_batch is None:
            raise ValueError("the size of a global batch is not known: call `batches` or `batch_sampler` before")
        return self._consumed + self._next_batch(len(self.dataset) - self._consumed)

    def _shares(self, next_batch: Callable[[int], int], *, fill: bool) -> Iterator[list[int]]:
        """`fill`: instead of an empty share, the first sample of the batch."""
        order = self._order()
        start = self._consumed
        while size := next_batch(len(order) - start):
            own = dealing.share(start, start + size, self.rank, self.num_replicas)
            yield [order[position] for position in own or ([start] if fill else [])]
            start += size

    def set_epoch(self, epoch: int) -> None:
        """Begins `epoch`, or continues it if it is the current one, as after `load_state_dict`."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._consumed = 0

    def state_dict(self) -> dict[str, int]:
        """The state for a checkpoint: the same on all ranks, and valid for any number of ranks."""
        return {"seed": self.seed, "epoch": self._epoch, "consumed": self._consumed, "dataset_size": len(self.dataset)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state` was taken, with its seed. Raises ValueError if the data set has another size."""
        if state["dataset_size"] != len(self.dataset):
            raise ValueError(
                f"The checkpoint is of a data set with {state['dataset_size']} samples, but this one has "
                f"{len(self.dataset)}: cannot continue the epoch. Begin a new epoch with a new sampler."
            )
        self.seed = state["seed"]
        self._epoch = state["epoch"]
        self._consumed = state["consumed"]

    def _order(self) -> Sequence[int]:
        size = len(self.dataset)
        return Permutation(size, key=f"{self.seed}:{self._epoch}") if self.shuffle else range(size)


class BatchSampler:
    """What `ElasticDistributedSampler.batch_sampler` returns. Each iteration begins where the sampler is then."""

    def __init__(self, sampler: ElasticDistributedSampler, global_batch_size: int) -> None:
        self._sampler = sampler
        self._size = global_batch_size

    def next_batch(self, left: int) -> int:
        """Samples in the next global batch if `left` are left."""
        world, drop_last = self._sampler.num_replicas, self._sampler.drop_last
        return dealing.next_batch(left, self._size, world, drop_last=drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self._sampler._shares(self.next_batch, fill=True)

    def __len__(self) -> int:
        """How many batches iteration yields now, the same on all ranks."""
        sampler = self._sampler
        left = len(sampler.dataset) - sampler.consumed
        return dealing.count_batches(left, self._size, sampler.num_replicas, drop_last=sampler.drop_last)


def _check_batch_size(global_batch_size: int) -> None:
    if global_batch_size < 1:
        raise ValueError(f"global_batch_size must be 1 or more: got {global_batch_size}")


def _current_world() -> tuple[int, int]:
    """(rank, world size) of this process. Does not import torch: a script with a process group has imported it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
