"""For Lightning's Trainer: no step is lost at planned changes, and no sample of an epoch is repeated.

elastic = ElasticCallback("checkpoints")
loader = DataLoader(dataset, batch_sampler=elastic.batch_sampler(dataset, 240))
trainer = Trainer(callbacks=[elastic, ModelCheckpoint("checkpoints", save_last=True)], use_distributed_sampler=False)
trainer.fit(model, loader, ckpt_path="last")
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from lightning.pytorch import Callback

from elasticjob_runtime.contract import Env
from elasticjob_runtime.data import ElasticDistributedSampler
from elasticjob_runtime.training.save_request import checkpoint_wanted

FILE = "last-planned-change.ckpt"
"""`ckpt_path="last"` takes the newest of the files whose names begin so."""


class ElasticCallback(Callback):
    """Makes Lightning save before the worker group changes, on all ranks after the same step, and counts batches.

    `directory` is that of a ModelCheckpoint, so that `ckpt_path="last"` finds what this callback saves.

    Under elasticrun it takes back Lightning's own handler of SIGTERM during `fit`: the agent would send that signal
    instead, and Lightning would stop without saving.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path = os.path.join(directory, FILE)
        self._batches: ElasticBatchSampler | None = None
        self._loaded: Mapping[str, Any] | None = None
        """The state of a checkpoint that was loaded before the sampler was made."""
        self._steps = 0
        self._sigterm: Any = None

    def batch_sampler(
        self, dataset: Sized, global_batch_size: int, *, shuffle: bool = True, seed: int = 0
    ) -> ElasticBatchSampler:
        """For the training's `DataLoader(batch_sampler=...)`: this rank's share of batches of all ranks together. It
        continues where the checkpoint was saved, whatever the number of ranks.

        Leaves out a last batch that is too short. Raises ValueError if the batch is smaller than the number of ranks,
        or larger than the data set.
        """
        self._batches = ElasticBatchSampler(dataset, global_batch_size, shuffle=shuffle, seed=seed)
        if self._loaded is not None:
            self._batches.load_state_dict(self._loaded)
        return self._batches

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 Lightning's names
        self._sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 Lightning's names
        self._steps = trainer.global_step
        if os.environ.get(Env.AGENT_SOCKET) and self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002 Lightning's names
        if self._batches is not None:
            self._batches.advance()
        if trainer.global_step == self._steps:
            return  # gradients are still accumulated
        self._steps = trainer.global_step
        if getattr(trainer.strategy, "continues_in_place", False):
            return  # see `save_alone`
        if checkpoint_wanted():
            trainer.save_checkpoint(self._path)
            checkpoint_wanted()  # does not return: the checkpoint is complete, and this process ends

    def save_alone(self, trainer: Any) -> None:
        """For an `ElasticStrategy`, when all members leave: the others may have gone, so nothing communicates."""
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(False)
        trainer.strategy.checkpoint_io.save_checkpoint(checkpoint, self._path)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._batches is None else self._batches.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not state_dict:
            return
        self._loaded = state_dict
        if self._batches is not None:
            self._batches.load_state_dict(state_dict)


class ElasticBatchSampler:
    """What `ElasticCallback.batch_sampler` returns. Iteration yields the rest of the epoch; the length is that of the
    whole epoch, as Lightning counts its batches."""

    def __init__(self, dataset: Sized, global_batch_size: int, *, shuffle: bool, seed: int) -> None:
        self.sampler = ElasticDistributedSampler(dataset, shuffle=shuffle, seed=seed, drop_last=True)
        """Lightning calls `set_epoch` of a batch sampler's `sampler`."""
        ranks = self.sampler.num_replicas
        if not ranks <= global_batch_size <= len(dataset):
            raise ValueError(
                f"global_batch_size is of all ranks together: expected {ranks} (ranks) ... {len(dataset)} (samples), "
                f"got {global_batch_size}"
            )
        self._size = global_batch_size
        self._shares = self.sampler.batch_sampler(global_batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._shares)

    def __len__(self) -> int:
        return len(self.sampler.dataset) // self._size

    def advance(self) -> None:
        self.sampler.advance()

    def state_dict(self) -> dict[str, int]:
        return {**self.sampler.state_dict(), "global_batch_size": self._size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the batches of the checkpoint have another size: Lightning counts batches."""
        if state["global_batch_size"] != self._size:
            raise ValueError(
                f"The checkpoint is of batches of {state['global_batch_size']} samples, but these have {self._size}: "
                "cannot continue the epoch."
            )
        self.sampler.load_state_dict(state)
        if len(self._shares) == 0:
            self.sampler.set_epoch(self.sampler.epoch + 1)
