"""`ElasticStrategy`: DDP that continues when the number of processes changes."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.integrations.lightning import loops
from elasticjob_runtime.training.integrations.lightning.callback import ElasticCallback
from elasticjob_runtime.training.integrations.lightning.refusals import refusal
from elasticjob_runtime.training.integrations.lightning.training import GlobalBatches, Training


class ElasticStrategy(DDPStrategy):
    """DDP in which processes are lost and join, while the others continue where they are.

        trainer = Trainer(strategy=ElasticStrategy(global_batch_size=240))
        trainer.fit(model, DataLoader(dataset, shuffle=True, num_workers=2))

    Nothing else of a script changes. global_batch_size is that of all ranks together, whatever their number; that of
    the training's DataLoader does not count. Under elasticrun, the number of devices and nodes is that of the job.

    A batch, a validation or the end of an epoch that a change interrupts is undone and repeated, hooks included.
    Checkpoints and loggers are those of the present rank 0.

    Where changes in place are impossible (NCCL, plain python, torchrun), it trains as DDPStrategy does.
    """

    def __init__(self, *, global_batch_size: int, seed: int = 0, **options: Any) -> None:
        """options: those of DDPStrategy. Raises ValueError if the batch is empty."""
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size is of all ranks together, and at least 1: {global_batch_size}")
        if "RANK" in os.environ:
            options.setdefault("cluster_environment", _Environment())
        super().__init__(**options)
        self._global_batch_size, self._seed = global_batch_size, seed
        self._batches: list[GlobalBatches] = []
        self._deals = False
        self._sigterm: Any = None
        self.training: Training | None = None

    @property
    def root_device(self) -> torch.device:
        if self.parallel_devices and self.parallel_devices[0].type == "cpu":
            return torch.device("cpu")
        device: torch.device = super().root_device
        return device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def setup(self, trainer: Any) -> None:
        """Raises ValueError for what cannot continue in place."""
        if trainer.state.fn == TrainerFn.FITTING:
            if problem := refusal(trainer):
                raise ValueError(
                    f'ElasticStrategy: {problem}. With strategy="ddp" and an ElasticCallback, all processes restart at '
                    "every change, and continue from a checkpoint"
                )
            self.training, self._batches = None, []
            loops.install(trainer)
            self._sigterm = signal.getsignal(signal.SIGTERM)
        super().setup(trainer)

    @contextlib.contextmanager
    def dealing(self) -> Iterator[None]:
        """Meanwhile, `process_dataloader` is for the training's loaders, and not the validation's."""
        self._deals = True
        try:
            yield
        finally:
            self._deals = False

    def process_dataloader(self, dataloader: object) -> object:
        if not self._deals:
            return super().process_dataloader(dataloader)
        self._batches.append(GlobalBatches(dataloader, self._global_batch_size, self._seed))
        return self._batches[-1]

    def on_train_start(self) -> None:
        super().on_train_start()
        assert self.lightning_module is not None
        if len(self._batches) != 1:
            raise ValueError(f"ElasticStrategy needs one DataLoader for the training: got {len(self._batches)}")
        if os.environ.get(Env.AGENT_SOCKET) and self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)  # the agent decides when this process ends
        trainer = self.lightning_module.trainer
        self.training = Training(trainer, self._batches[0])
        for callback in trainer.callbacks:
            if isinstance(callback, ElasticCallback):
                self.training.session.save_at_end(functools.partial(callback.save_alone, trainer))
        self.training.begin()

    @property
    def continues_in_place(self) -> bool:
        """Whether this training does."""
        return self.training is not None and self.training.session.continues_in_place

    def world_changed(self) -> None:
        """To be called by each process that has entered a world."""
        assert self.lightning_module is not None
        self.set_world_ranks()
        # Its data is distributed over the ranks.
        self.lightning_module.trainer.fit_loop.epoch_loop.val_loop._combined_loader = None

    # -- communication

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        self._communicate(lambda: super(ElasticStrategy, self).barrier(*args, **kwargs), lambda: None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return self._communicate(lambda: super(ElasticStrategy, self).broadcast(obj, src), lambda: obj)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        group = group or torch.distributed.group.WORLD  # of this world, whenever the thread begins
        return self._communicate(lambda: super(ElasticStrategy, self).reduce(tensor, group, reduce_op), lambda: tensor)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002 Lightning's name
        group = torch.distributed.group.WORLD

        def decide() -> bool:
            count = DDPStrategy.reduce(self, torch.tensor(int(decision), device=self.root_device), group, "sum")
            return bool(count == self.world_size if all else count)

        return bool(self._communicate(decide, lambda: decision))

    def all_gather(self, *args: Any, **kwargs: Any) -> Any:
        return self._communicate(lambda: super(ElasticStrategy, self).all_gather(*args, **kwargs))

    def _communicate(self, function: Any, otherwise: Any = None) -> Any:
        return function() if self.training is None else self.training.session.communicate(function, otherwise)


class _Environment(TorchElasticEnvironment):
    """The present world: the session keeps these environment variables up to date."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """The agents know how many processes there are."""
