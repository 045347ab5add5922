"""`ElasticDistributedSampler`: which rank reads which sample, in a world that changes its size. Used in training
scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from elasticjob_runtime.data.permutation import Permutation


class ElasticDistributedSampler:
    """A distributed sampler whose state is one number: how many samples of the epoch all ranks together have consumed.

    Every rank sees the same order of the whole data set, named by (seed, epoch). Ranks take turns in it: rank r of W
    gets the indices at consumed + r, consumed + r + W, ... So whatever the ranks have consumed in step with each other
    is a prefix of the order, and the rest can be dealt to any number of ranks. torch's sampler of the same name
    shuffles the rest anew: 4 -> 3 ranks after 500 of 1000 samples, and 252 of them are lost and 252 come twice.

    Two ways to use it. Both count with `advance(samples)`, the number of samples that ALL ranks trained on, once the
    optimizer step is done: what a data loader has fetched ahead does not count.

    With a fixed global batch, for a trajectory that does not depend on the number of ranks:

        for indices in sampler.batches(64):
            ...                                 # train on dataset[i] for i in indices
            sampler.advance(64)

    With torch's DataLoader and a batch per rank:

        loader = DataLoader(dataset, batch_size=16, sampler=sampler)
        for batch in loader:
            ...
            sampler.advance(16 * sampler.num_replicas)

    The last, partial turn of an epoch:

    - `batches` deals out what is left, be it less than a batch or less than one sample per rank: every sample comes
      exactly once, all ranks take the same number of steps, and a rank may get an empty list in the last one. Weigh the
      loss by the global batch, not by the rank's share.
    - iteration (DataLoader) gives all ranks the same number of samples, as torch does, because DDP hangs otherwise:
      with drop_last=False the last turn is filled up with at most W - 1 samples from the start of the order, with
      drop_last=True at most W - 1 samples are left out.

    `advance` stops at the end of the epoch; `set_epoch(n)` begins epoch n, or goes on in it where n is the current one.
    After the end of an epoch there is nothing left until `set_epoch` names the next.

    Arguments, as torch's:

    - dataset: anything with a length.
    - num_replicas, rank: default torch.distributed's where it is initialised, else WORLD_SIZE and RANK from the
      environment, else 1 and 0.
    - start_index: samples already consumed of epoch 0, for scripts that keep this number themselves.
    - shuffle: False gives 0, 1, 2 ... in every epoch.
    - seed: the same on all ranks.

    Raises ValueError for a rank outside the world, a start index outside the data set, or a state of another data set.
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
                f"rank {self.rank} is outside of 0 ... {self.num_replicas - 1}, the ranks of "
                f"num_replicas={self.num_replicas}"
            )
        if not 0 <= start_index <= len(dataset):
            raise ValueError(f"start_index {start_index} is outside of 0 ... {len(dataset)}, the size of the data set")
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
        """Samples of this epoch that all ranks together have trained on."""
        return self._consumed

    def __len__(self) -> int:
        """How many indices iteration gives this rank now, the same for all ranks."""
        left = len(self.dataset) - self._consumed
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        """This rank's share of the rest of the epoch, for a DataLoader."""
        order = self._order()
        first = self._consumed + self.rank
        for turn in range(len(self)):
            yield order[(first + turn * self.num_replicas) % len(order)]

    def batches(self, global_batch_size: int) -> Iterator[list[int]]:
        """This rank's share of each global batch in the rest of the epoch.

        The shares of a batch differ by one sample at most. Give `advance` the same `global_batch_size` after each
        optimizer step.
        """
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size must be 1 or more: got {global_batch_size}")
        order = self._order()
        for start in range(self._consumed, len(order), global_batch_size):
            end = min(start + global_batch_size, len(order))
            yield list(order[start + self.rank : end : self.num_replicas])

    def advance(self, samples: int) -> None:
        """Counts `samples` that all ranks together have trained on; what goes past the end of the epoch does not
        count."""
        if samples < 0:
            raise ValueError(f"cannot go back by {-samples} samples")
        self._consumed = min(self._consumed + samples, len(self.dataset))

    def set_epoch(self, epoch: int) -> None:
        """Begins `epoch`. Goes on where it was when that is the current one, as after `load_state_dict`."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._consumed = 0

    def state_dict(self) -> dict[str, int]:
        """The state to put into a checkpoint: the same on all ranks, valid for any number of ranks."""
        return {"seed": self.seed, "epoch": self._epoch, "consumed": self._consumed, "dataset_size": len(self.dataset)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken, with its seed: the rest of its epoch is the rest of its order."""
        if state["dataset_size"] != len(self.dataset):
            raise ValueError(
                f"The checkpoint is of a data set of {state['dataset_size']} samples, this one has "
                f"{len(self.dataset)}: "
                "the rest of the epoch cannot be told. Begin a new epoch with a new sampler."
            )
        self.seed = state["seed"]
        self._epoch = state["epoch"]
        self._consumed = state["consumed"]

    def _order(self) -> Sequence[int]:
        size = len(self.dataset)
        return Permutation(size, key=f"{self.seed}:{self._epoch}") if self.shuffle else range(size)


def _current_world() -> tuple[int, int]:
    """(rank, world size) of this process. Never imports torch: a script that has a process group has imported it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
