"""`ElasticDistributedSampler`: which rank reads which sample while the number of workers changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from elasticjob_runtime.data.permutation import Permutation


class ElasticDistributedSampler:
    """A distributed sampler for a number of workers that may change within an epoch.

    Its state is one number: how many samples of the epoch all ranks together have consumed. Every rank computes the
    same order of the whole data set from (seed, epoch), and ranks take turns in it: rank r of W gets the indices at
    consumed + r, consumed + r + W, and so on. So the consumed samples are always a prefix of the order, and the rest
    can be distributed to any number of ranks. torch's DistributedSampler shuffles again after a change: going from 4 to
    3 ranks after 500 of 1000 samples, it loses 252 of them and repeats 252.

    There are two ways to use it. In both, call `advance(samples)` after each optimizer step with the number of samples
    that ALL ranks trained on. Samples that a data loader has only prefetched do not count.

    With a fixed global batch, the training does not depend on the number of ranks:

        for indices in sampler.batches(64):
            ...                                 # train on dataset[i] for i in indices
            sampler.advance(64)

    With torch's DataLoader and a batch size per rank:

        loader = DataLoader(dataset, batch_size=16, sampler=sampler)
        for batch in loader:
            ...
            sampler.advance(16 * sampler.num_replicas)

    They differ at the end of an epoch:

    - `batches` distributes all remaining samples, even if they are less than a batch or less than one per rank. Each
      sample comes exactly once, all ranks take the same number of steps, and a rank may get an empty list in the last
      one. Weight the loss by the size of the global batch, not of the rank's share.
    - Iteration (DataLoader) gives all ranks the same number of samples, as torch does, because DDP would hang
    otherwise.
      With drop_last=False, up to W - 1 samples from the start of the order fill the last turn. With drop_last=True, up
      to W - 1 samples are left out.

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
        """Yields this rank's share of each global batch in the rest of the epoch.

        The shares of a batch differ by at most one sample. Call `advance` with the same `global_batch_size` after each
        optimizer step.
        """
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size must be 1 or more: got {global_batch_size}")
        order = self._order()
        for start in range(self._consumed, len(order), global_batch_size):
            end = min(start + global_batch_size, len(order))
            yield list(order[start + self.rank : end : self.num_replicas])

    def advance(self, samples: int) -> None:
        """Counts `samples` as consumed by all ranks together, up to the end of the epoch."""
        if samples < 0:
            raise ValueError(f"samples must be 0 or more: got {samples}")
        self._consumed = min(self._consumed + samples, len(self.dataset))

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


def _current_world() -> tuple[int, int]:
    """(rank, world size) of this process. Does not import torch: a script with a process group has imported it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
