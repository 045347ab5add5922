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
from elasticjob_runtime.training.session.adapter import Adapter, AdapterSession

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
        adapter = AcceleratorAdapter(self)
        return adapter.new_session(model=model, optimizer=optimizer, scheduler=scheduler, **others)

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

        return self._session.communicate(communicate)


class AcceleratorAdapter:
    """Makes an `ElasticAccelerator` follow its session."""

    def __init__(self, accelerator: ElasticAccelerator) -> None:
        self._accelerator = accelerator
        self._session: AcceleratorSession | None = None

    def new_session(self, **given: Any) -> AcceleratorSession:
        """given: what `prepare` returned, or None, by name."""
        parts = {"scaler": self._accelerator.scaler, **given}
        parts = {name: _inner(part) for name, part in parts.items() if part is not None}
        self._session = self._accelerator._session = AcceleratorSession(self._accelerator, self, **parts)
        return self._session

    def steps(self) -> int:
        return 0 if self._session is None else self._session.committed_steps

    def entered(self) -> None:
        follow(self._accelerator)

    def remember(self, *, batch: bool) -> Callable[[], None]:  # noqa: ARG002 of the protocol
        """`Accelerator.step` counts the micro-batches of `accumulate`."""
        return functools.partial(setattr, self._accelerator, "step", self._accelerator.step)


class AcceleratorSession(AdapterSession):
    """What `ElasticAccelerator.session` returns."""

    def __init__(self, accelerator: ElasticAccelerator, adapter: Adapter, **parts: Any) -> None:
        super().__init__(adapter, **parts)
        self._accelerator = accelerator

    def batches(self, *args: Any, **options: Any) -> Iterator[Any]:
        batches = super().batches(*args, **options)
        if self._accelerator.device.type == "cpu" or not self._accelerator.device_placement:
            return batches
        return map(functools.partial(send_to_device, device=self._accelerator.device), batches)


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
