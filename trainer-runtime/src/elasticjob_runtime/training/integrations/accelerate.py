"""For Hugging Face Accelerate: training that continues in place.

    accelerator = ElasticAccelerator()
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    session = accelerator.session(model=model, optimizer=optimizer, scheduler=scheduler)
    for batch in session.batches(dataset, batch_size=256):
        with session.step():
            ...  # as before: accelerator.backward(loss), optimizer.step(), scheduler.step()

`session` is an `ElasticSession`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, send_to_device

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.session import ElasticSession
from elasticjob_runtime.training.session.feed import Cursor, Share

T = TypeVar("T")


class ElasticAccelerator(Accelerator):
    """An `Accelerator` whose number of processes may change between two steps of its `session`.

    `num_processes`, `process_index` and `is_main_process` follow each change, and so do prepared data loaders, from
    their next iteration on: use them in `session.evaluate`. The training's own batches come from `session.batches`, on
    the accelerator's device. Schedulers advance once per step, not once per process: the batch of all processes stays
    the same, as with `split_batches`.
    """

    _session: AcceleratorSession | None = None

    def session(self, *, model: Any, optimizer: Any = None, scheduler: Any = None, **others: Any) -> AcceleratorSession:
        """See `ElasticSession`; takes what `prepare` returned."""
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": self.scaler, **others}
        parts = {name: _inner(part) for name, part in given.items() if part is not None}
        self._session = AcceleratorSession(self, **parts)
        return self._session

    def prepare(self, *args: Any, **options: Any) -> Any:
        with _one_of_many():
            prepared = super().prepare(*args, **options)
        follow(self)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        prepared = super().prepare_scheduler(scheduler)
        prepared.split_batches = True
        return prepared

    def gather(self, tensor: Any) -> Any:
        return self._communicate(functools.partial(super().gather, tensor))

    def gather_for_metrics(self, *args: Any, **options: Any) -> Any:
        return self._communicate(functools.partial(super().gather_for_metrics, *args, **options))

    def reduce(self, *args: Any, **options: Any) -> Any:
        return self._communicate(functools.partial(super().reduce, *args, **options))

    def pad_across_processes(self, *args: Any, **options: Any) -> Any:
        return self._communicate(functools.partial(super().pad_across_processes, *args, **options))

    def wait_for_everyone(self) -> None:
        self._communicate(super().wait_for_everyone)

    def _communicate(self, function: Callable[[], T]) -> T:
        """Ends with the world. What gloo waits for on a CPU may not, and takes place in another thread then."""
        if self._session is None or self.device.type != "cpu":
            return function()
        gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()  # of this thread

        def communicate() -> T:
            with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
                return function()

        return self._session._communicate(communicate)


class AcceleratorSession(ElasticSession):
    """What `ElasticAccelerator.session` returns."""

    def __init__(self, accelerator: ElasticAccelerator, **parts: Any) -> None:
        self._accelerator = accelerator
        self.count_steps: Callable[[], int] = lambda: self._state.committed
        """What the agent shows; not all steps of an adapter are those that its users count."""
        super().__init__(**parts)

    def batches(self, *args: Any, **options: Any) -> Iterator[Any]:
        batches = super().batches(*args, **options)
        if self._accelerator.device.type == "cpu" or not self._accelerator.device_placement:
            return batches
        return map(functools.partial(send_to_device, device=self._accelerator.device), batches)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        committed, accumulated = self._state.committed, self._accelerator.step
        with super().step():
            yield
        if self._state.committed <= committed:  # interrupted
            self._accelerator.step = accumulated

    def _reported_step(self) -> int:
        return self.count_steps()

    def _entered(self) -> None:
        follow(self._accelerator)

    # -- for adapters whose loop does more between two batches

    @property
    def continues_in_place(self) -> bool:
        return self._engine is not None

    @property
    def share(self) -> Share:
        """This process's part of the batch in use."""
        assert self._offered is not None, "only between batches() and the end of step()"
        return self._offered

    def begin_at(self, cursor: Cursor) -> None:
        """Enters the first world. A training that begins there, begins at `cursor`."""
        self._state.cursor = cursor
        self._begin()

    def settle(self) -> None:
        """Enters the newest world, if this process is not in it. What follows must depend on the session's state only:
        other processes may be at another place in the script."""
        self._settle()

    def withdraw_batch(self) -> None:
        """Puts the batch in use back: `batches` deals it again, if it is still due."""
        self._offered = None

    def step_without_batch(self) -> contextlib.AbstractContextManager[None]:
        """For what all processes do between two batches, and again if it is interrupted. It must change the state, by
        which processes that have done it are told from those that have not."""
        self._offered = Share(positions=(), samples=0, batch=1, next=self._state.cursor)
        return self.step()

    def leave_planned_changes(self) -> None:
        """To the adapter, which saves before them."""
        self._state.saves_before_changes = False

    def save_at_end(self, save: Callable[[], None]) -> None:
        """When all members leave, calls `save` in one process, between two steps. It must not communicate."""
        self._save_at_end(save)

    def take_snapshot(self) -> None:
        """In memory, of the state between two steps, even if none is due."""
        self._state.take_snapshot()

    def weigh_processes(self) -> None:
        """The losses of this step are weighted already: DDP takes the mean over processes. One without samples of its
        own adds nothing."""
        share = self.share
        counted = dataclasses.replace(share, samples=min(1, share.samples), batch=self._size)
        self._weight.begin(counted, self._size)

    def add_up(self, tensor: torch.Tensor) -> None:
        """Makes `tensor` the sum over all processes. Only within a step."""
        if self._engine is None:
            if self._size > 1:
                dist.all_reduce(tensor)
            return
        if tensor.is_cpu:
            self._engine.wait(dist.all_reduce(tensor, async_op=True))
        else:
            self._engine.communicate(functools.partial(_begin_all_reduce, tensor)).wait()
        self._engine.wait_for_collectives()


def _begin_all_reduce(tensor: torch.Tensor) -> torch.futures.Future[Any]:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work.get_future()


def follow(accelerator: Accelerator) -> None:
    """Makes Accelerate's view of the world that of torch."""
    if not dist.is_initialized():
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    for state in (PartialState(), AcceleratorState()):  # the second one has copies
        state.process_index, state.num_processes = rank, size
    accelerator.gradient_state.dataloader_references = [None]  # iterations that were interrupted
    for loader in accelerator._dataloaders:
        for shard in (loader.batch_sampler, loader.dataset):
            if isinstance(shard, (BatchSamplerShard, IterableDatasetShard)):
                shard.process_index, shard.num_processes = rank, size


@contextlib.contextmanager
def _one_of_many() -> Iterator[None]:
    """Makes Accelerate prepare a process that is in a world of its own like those that it joins: with a model in
    DistributedDataParallel (on GPUs), and data loaders that deal batches."""
    states = (PartialState(), AcceleratorState())
    alone = states[0].num_processes == 1 and states[0].distributed_type != DistributedType.NO
    if not alone or os.environ.get(Env.IN_PLACE) != "1":
        yield
        return
    for state in states:
        state.num_processes = 2
    try:
        yield
    finally:
        for state in states:
            state.num_processes = 1


def _inner(part: Any) -> Any:
    """The optimizer inside of what `prepare` returned, on which torch can register hooks."""
    return part.optimizer if isinstance(part, AcceleratedOptimizer) else part
