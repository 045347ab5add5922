"""What the session uses of DistributedDataParallel beyond its public interface: its reducer, which belongs to a process
group, and its communication hooks. `torch_private.missing` says whether this torch has it."""

from __future__ import annotations

import contextlib
import datetime
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_waits: weakref.WeakKeyDictionary[DistributedDataParallel, Callable[[Any], Any]] = weakref.WeakKeyDictionary()
_reducer_groups: weakref.WeakKeyDictionary[DistributedDataParallel, Any] = weakref.WeakKeyDictionary()
"""Not attributes of the modules, which may be copied: a group cannot. C++ does not keep the part of it in Python."""
_reduced: weakref.WeakKeyDictionary[DistributedDataParallel, list[torch.nn.Parameter]] = weakref.WeakKeyDictionary()
"""What the module's first reducer reduces: scripts may freeze layers later, and train them again."""


def reduce_with(ddp: DistributedDataParallel, wait: Callable[[Any], Any]) -> None:
    """Makes what the module's reducer waits for by itself, in C++, end with the world, from the next `rebuild` on: the
    layout of the buckets and, with find_unused_parameters, which parameters each rank has used. To be called before the
    script trains.

    wait(work): waits for the work of a collective on the CPU, or until the world ends.
    """
    _waits[ddp] = wait
    _reduced[ddp] = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]


class _ReducerGroup(dist.ProcessGroup):
    """The default process group, as a reducer sees it."""

    def __init__(self, group: dist.ProcessGroup, wait: Callable[[Any], Any]) -> None:
        super().__init__(group.rank(), group.size())
        device = torch.device("cpu")  # C++ also asks for the backend of a group
        self._register_backend(device, dist.ProcessGroup.BackendType.GLOO, group._get_backend(device))
        # Not methods, which would refer to the group they belong to, and it to them: see `torch_private._class_of`.
        self.broadcast = _unseen_by_dynamo(_interruptible(group.broadcast, wait))  # type: ignore[method-assign]
        self.allreduce = _unseen_by_dynamo(_interruptible(group.allreduce, wait))  # type: ignore[method-assign]
        self._backend_name = group.name()

    def getBackendName(self) -> str:  # noqa: N802 torch's name
        return self._backend_name


class _ReducerWork(dist.Work):
    def __init__(self, work: Any, wait: Callable[[Any], Any]) -> None:
        super().__init__()
        self.used = used = [False]
        """Whether C++ needs this object no longer."""

        def wait_for_work(_timeout: datetime.timedelta) -> bool:
            used[0] = True
            wait(work)
            return True

        def future_of_work() -> Any:
            used[0] = True
            return work.get_future()

        self.wait = _unseen_by_dynamo(wait_for_work)  # type: ignore[method-assign]
        self.get_future = _unseen_by_dynamo(future_of_work)  # type: ignore[method-assign]


def _interruptible(collective: Callable[..., Any], wait: Callable[[Any], Any]) -> Callable[..., Any]:
    begun: list[_ReducerWork] = []
    """In torch 2.6, C++ does not keep the part of a work in Python, and would wait for what never ends."""

    def begin(tensors: Sequence[torch.Tensor], options: Any) -> Any:
        work = collective(tensors, options)
        if not tensors[0].is_cpu:
            return work  # only the stream waits
        begun[:] = [one for one in begun if not one.used[0]]
        begun.append(_ReducerWork(work, wait))
        return begun[-1]

    return begin


def _unseen_by_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what C++ calls in the midst of a compiled model, which torch.compile would compile too."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def rebuild(ddp: DistributedDataParallel) -> None:
    """Makes the module's reducer again, for the current default process group.

    In every process of a new world: a reducer lays its buckets out again after its first step, so that survivors and
    joiners would otherwise add up gradients of different parameters without any error. It also forgets the step that
    was interrupted. This is what DDP does when it is unpickled.
    """
    assert dist.group.WORLD is not None
    ddp.process_group = dist.group.WORLD
    with _frozen_as_at_first(ddp):
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        if ddp in _waits and all(parameter.is_cpu for parameter in parameters):
            ddp.process_group = _reducer_groups[ddp] = _ReducerGroup(dist.group.WORLD, _waits[ddp])
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp.process_group = dist.group.WORLD
    ddp.require_forward_param_sync = True  # False after a micro-batch whose gradients were not exchanged (no_sync)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp._static_graph_delay_allreduce_enqueued = False
    for hook, state in getattr(ddp, "_comm_hooks", ()):
        dist._register_comm_hook(ddp.reducer, state, hook)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _frozen_as_at_first(ddp: DistributedDataParallel) -> Iterator[None]:
    """A reducer leaves out what is frozen when it is made, for ever, and joiners make theirs at the beginning."""
    now = [(parameter, parameter.requires_grad) for parameter in ddp.module.parameters()]
    reduced = {id(parameter) for parameter in _reduced.get(ddp, [parameter for parameter, trained in now if trained])}
    try:
        for parameter, _ in now:
            parameter.requires_grad_(id(parameter) in reduced)
        yield
    finally:
        for parameter, trained in now:
            parameter.requires_grad_(trained)


def wrap_hooks(
    ddp: DistributedDataParallel, wrap: Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]
) -> None:
    """Replaces the module's communication hooks, from the next `rebuild` on."""
    ddp._comm_hooks = [(wrap(hook), state) for hook, state in getattr(ddp, "_comm_hooks", ())]


def broadcast_buffers_with(
    ddp: DistributedDataParallel, broadcast: Callable[[Sequence[torch.Tensor], int], None]
) -> None:
    """Makes the module broadcast its buffers before a forward pass with `broadcast(tensors, source rank)`."""
    ddp._distributed_broadcast_coalesced = lambda tensors, _, source=0: broadcast(tensors, source)  # type: ignore[method-assign]


def group_of_hook(ddp: DistributedDataParallel) -> bool:
    """Whether a communication hook of the module has a process group of its own, as far as that shows."""
    states = [state for _, state in getattr(ddp, "_comm_hooks", ())]
    held = [*states, *(getattr(state, "process_group", None) for state in states)]
    return any(isinstance(value, dist.ProcessGroup) for value in held)


def has_comm_hook(ddp: DistributedDataParallel) -> bool:
    return bool(getattr(ddp, "_comm_hooks", ())) or getattr(ddp, "mixed_precision", None) is not None


def uses_default_group(ddp: DistributedDataParallel) -> bool:
    return ddp.process_group is dist.group.WORLD
