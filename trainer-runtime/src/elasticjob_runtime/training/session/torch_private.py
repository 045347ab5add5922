"""All that the session uses of torch and gloo beyond their public interfaces. Nothing else here knows these names.

A change of torch that breaks one of them fails tests/unit/runtime/training/session/test_torch_private.py; at run time,
`missing` names it, and the training continues at level 1 (restarts).

Continuing in a new world needs no private function: `destroy_process_group`, `init_process_group`. torch 2.15 also has
`_reconfigure`, which was measured and left out; see docs/design/0022-in-place.md.
"""

from __future__ import annotations

import contextlib
import datetime
import dis
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, distributed_c10d  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data._utils import pin_memory as _pin_memory
from torch.utils.data._utils import worker as _worker

from elasticjob_runtime.training.session.interruption import OVER, OverError

_USED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (dist, ("_register_comm_hook",)),
    (distributed_c10d, ("ProcessGroupGloo", "_world")),
    (
        DistributedDataParallel,
        (
            "_build_params_for_reducer",
            "_build_debug_param_to_name_mapping",
            "_ddp_init_helper",
            "_distributed_broadcast_coalesced",
        ),
    ),
)
_USED_OF_INSTANCES = ("_comm_hooks",)
"""What the constructor of DistributedDataParallel sets."""

_set_timeout = getattr(dist, "set_timeout", None) or getattr(distributed_c10d, "_set_pg_timeout", None)
"""Public since torch 2.15."""

_LINK_ERRORS = (
    OVER,
    "gloo",
    "NCCL",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
)
"""Parts of the messages of errors that mean that another process, or the connection to it, is gone."""


def missing() -> str:
    """What this torch lacks to continue in place; empty: nothing."""
    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch is built without gloo"
    if _set_timeout is None:
        return f"torch {torch.__version__} cannot change the timeout of a process group"
    for owner, names in _USED:
        for name in names:
            if not hasattr(owner, name):
                return f"torch {torch.__version__} has no {owner.__name__}.{name}, which a change in place needs"
    for name in _USED_OF_INSTANCES:
        if name not in DistributedDataParallel.__init__.__code__.co_names:
            return f"DistributedDataParallel of torch {torch.__version__} has no {name}, which a change in place needs"
    if os.environ.get("TORCH_GLOO_LAZY_INIT", "0") not in ("", "0"):
        return "TORCH_GLOO_LAZY_INIT is set: connections that open during a step cannot be closed to interrupt it"
    return ""


def swap_problem() -> str:
    """Why a connected group cannot become one of torch's here; empty: it can. Tries it with a group of this process
    alone: that the names exist does not say what they do."""
    try:
        gloo = connect(PrefixStore("elasticjob-check", dist.HashStore()), 0, 1, CHECK_TIMEOUT)  # type: ignore[attr-defined]
        with _swapped({"ProcessGroupGloo": gloo}):
            group = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
        same = group._get_backend(torch.device("cpu")) is gloo  # type: ignore[union-attr]
        dist.destroy_process_group(group)
    except Exception as error:  # noqa: BLE001 whatever it is, processes restart as without a session
        return f"torch {torch.__version__} does not take a group that is connected already: {error!r}"
    return "" if same else f"torch {torch.__version__} connects its groups itself, which a change in place has to do"


CHECK_TIMEOUT = 5.0
"""s that forming a group of this process alone may take."""


def missing_nccl() -> str:
    """What this process lacks to continue in place with NCCL; empty: nothing."""
    if not dist.is_nccl_available():
        return "this torch is built without NCCL"
    name = nccl_class()
    for needed in ("abort", "eager_connect_single_device"):
        if not hasattr(getattr(distributed_c10d, name), needed):
            return f"torch {torch.__version__} has no {name}.{needed}, which a change in place with NCCL needs"
    if os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") not in ("", "0"):
        return "TORCH_NCCL_BLOCKING_WAIT is set: nothing can interrupt how torch waits for NCCL then"
    return ""


def nccl_class() -> str:
    """The name of the class that torch makes groups with the backend "nccl" of: another one since torch 2.15."""
    chosen = hasattr(distributed_c10d, "ProcessGroupNCCL2") and os.environ.get("TORCH_DIST_USE_NCCL2") != "0"
    return "ProcessGroupNCCL2" if chosen else "ProcessGroupNCCL"


def is_link_error(error: BaseException | None) -> bool:
    """Whether `error` says that the communication with other processes failed, and not the user's own code."""
    while error is not None:
        if isinstance(error, (OverError, getattr(dist, "DistError", OverError))):
            return True
        if (
            isinstance(error, RuntimeError)
            and not _raised_by_python(error)
            and any(part in str(error) for part in _LINK_ERRORS)
        ):
            return True
        error = error.__cause__
    return False


def _raised_by_python(error: BaseException) -> bool:
    """Whether a `raise` statement raised it, and not torch's C++ code."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


Gloo = Any
"""A ProcessGroupGloo. torch exports its class only where it is built with gloo."""


def connect(store: PrefixStore, rank: int, size: int, timeout: float) -> Gloo:
    """Connects to the other processes that meet in `store`. Blocks, whatever the timeout, while one of them does not
    connect to this one."""
    return distributed_c10d.ProcessGroupGloo(store, rank, size, timeout=datetime.timedelta(seconds=timeout))


Nccl = Any
"""A ProcessGroupNCCL, or ProcessGroupNCCL2: see `nccl_class`."""


def connect_nccl(store: PrefixStore, rank: int, size: int, device: torch.device, timeout: float) -> Nccl:
    """The same with NCCL. Gives up after `timeout` seconds, or later: some of what it does has none."""
    options = distributed_c10d.ProcessGroupNCCL.Options()
    options._timeout = datetime.timedelta(seconds=timeout)
    options.config.blocking = 0  # so that connecting ends at all if another process does not take part
    nccl: Nccl
    if nccl_class() == "ProcessGroupNCCL2":
        nccl = distributed_c10d.ProcessGroupNCCL2(store, rank, size, options, device)
    else:
        nccl = distributed_c10d.ProcessGroupNCCL(store, rank, size, options)
    nccl.eager_connect_single_device(device)
    return nccl


def replace_group(
    gloo: Gloo,
    store: PrefixStore,
    rank: int,
    size: int,
    timeout: float,
    *,
    nccl: Nccl | None = None,
    device: torch.device | None = None,
) -> dist.ProcessGroup | None:
    """Makes `gloo`, with `nccl` for tensors on GPUs, the default process group, and returns the one that was.

    Connecting is what may block for long, and has happened before, in a thread that could be left to itself.
    timeout: s that each of its collectives may take; device: that of `nccl`.
    """
    old = dist.group.WORLD if dist.is_initialized() else None
    if old is not None:
        if device is not None:  # the script's first group: only an aborted one is destroyed without other processes
            old._get_backend(device).abort()
        inspect.unwrap(dist.destroy_process_group)()  # torch's own: see `release`, and workers/zygote/patches.py
    connected = {"ProcessGroupGloo": gloo} if nccl is None else {"ProcessGroupGloo": gloo, nccl_class(): nccl}
    backend = "gloo" if nccl is None else "cpu:gloo,cuda:nccl"
    _forget_prefix()
    with _swapped(connected):
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, device_id=device)
    assert _set_timeout is not None
    _set_timeout(datetime.timedelta(seconds=timeout))
    return old


def _forget_prefix() -> None:
    """Each process group that becomes the default one puts its rank before the lines of the last traceback, and before
    what earlier ones have put there."""
    while getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook":
        sys.excepthook = inspect.getclosurevars(sys.excepthook).nonlocals["old_hook"]


@contextlib.contextmanager
def _swapped(connected: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile, torch takes these groups wherever it makes one. By the names of their classes."""
    originals = {name: getattr(distributed_c10d, name) for name in connected}
    held = {name: [each] for name, each in connected.items()}
    vars(distributed_c10d).update({name: _class_of(originals[name], each) for name, each in held.items()})
    try:
        yield
    finally:
        vars(distributed_c10d).update(originals)
        for each in held.values():
            each.clear()


def _class_of(original: Any, held: list[Any]) -> Any:
    """A class whose only instance is the group in `held`: some versions of torch also check the group's type (2.6), and
    that of its options.

    The caller empties `held`: a class is part of a reference cycle, and what the garbage collector frees, it frees in
    any thread, which may then never return (see `release`).
    """

    class Class(type):
        def __call__(cls, *_: Any, **__: Any) -> Any:
            return held[0]

        def __instancecheck__(cls, instance: object) -> bool:
            return any(instance is each for each in held)

    return Class(original.__name__, (), {"Options": getattr(original, "Options", None)})


def release(groups: list[Any]) -> None:
    """Gives up `groups` in a thread of its own, each when nothing else refers to it: the destructor of a gloo group
    takes 30 ms, and does not return while gloo still waits for an operation that it has lost. Frames of errors may
    refer to a group for a while; the garbage collector then frees them in any thread."""
    held = [*groups]
    groups.clear()
    threading.Thread(target=_release, args=(held,), name="elasticjob-release", daemon=True).start()


def _release(held: list[Any]) -> None:
    while held:
        for index in reversed(range(len(held))):
            if sys.getrefcount(held[index]) <= ALONE:
                devices = getattr(held[index], "_device_types", ())  # a raw group is itself a backend
                backends = [held[index]._get_backend(device) for device in devices]
                del held[index]
                del backends  # without the interpreter, which torch before 2.8 holds while it destroys a group
        if held:
            time.sleep(RELEASE_INTERVAL)


_only = [object()]
ALONE = sys.getrefcount(_only[0])
"""References to what only one list refers to, counted as in `_release`."""
RELEASE_INTERVAL = 1.0
"""s between two looks whether a group can be given up."""


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
    _reduced[ddp] = [each for each in ddp.module.parameters() if each.requires_grad]


class _ReducerGroup(dist.ProcessGroup):
    """The default process group, as a reducer sees it."""

    def __init__(self, group: dist.ProcessGroup, wait: Callable[[Any], Any]) -> None:
        super().__init__(group.rank(), group.size())
        device = torch.device("cpu")  # C++ also asks for the backend of a group
        self._register_backend(device, dist.ProcessGroup.BackendType.GLOO, group._get_backend(device))
        # Not methods, which would refer to the group they belong to, and it to them: see `_class_of`.
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
        begun[:] = [each for each in begun if not each.used[0]]
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
        if ddp in _waits and all(each.is_cpu for each in parameters):
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
    now = [(each, each.requires_grad) for each in ddp.module.parameters()]
    reduced = {id(each) for each in _reduced.get(ddp, [each for each, trained in now if trained])}
    try:
        for each, _ in now:
            each.requires_grad_(id(each) in reduced)
        yield
    finally:
        for each, trained in now:
            each.requires_grad_(trained)


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
    return any(isinstance(each, dist.ProcessGroup) for each in held)


def set_timeout(gloo: Gloo, timeout: float) -> None:
    """timeout: s that each operation of a group that torch does not know may take, from now on."""
    change = getattr(gloo, "set_timeout", None) or gloo._set_default_timeout  # public since torch 2.15
    change(datetime.timedelta(seconds=timeout))


def all_reduce(gloo: Gloo, tensor: torch.Tensor, *, lowest: bool = False) -> Any:
    """The work that makes `tensor` the sum over the ranks of a group that torch does not know, or the lowest."""
    options = distributed_c10d.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MIN if lowest else dist.ReduceOp.SUM
    return gloo.allreduce([tensor], options)


def is_dtensor(tensor: torch.Tensor) -> bool:
    """By name: importing the class takes longer than a restart may."""
    return type(tensor).__name__ == "DTensor"


def is_offloaded(tensor: Any) -> bool:
    """Whether a DTensor is on the CPU, and its mesh on GPUs: fully_shard's CPUOffloadPolicy."""
    return bool(is_dtensor(tensor) and tensor.device_mesh.device_type != tensor.device.type)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, in the same memory; any other tensor as it is."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def as_dtensor(part: torch.Tensor, like: Any) -> torch.Tensor:
    """The DTensor whose part on this rank is `part`, sharded as the DTensor `like`."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def fsdp_modules(module: torch.nn.Module) -> list[Any]:
    """Those that `fully_shard` was called for."""
    return [part for part in module.modules() if is_fsdp_module(part)]


def is_fsdp_module(module: torch.nn.Module) -> bool:
    # By name: importing the class takes longer than a restart may.
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def mesh_sizes(fsdp: Any) -> list[tuple[int, ...]]:
    """Shapes of the meshes over which an FSDP module shards its parameters; two dimensions mean HSDP."""
    return [tuple(mesh.shape) for mesh in fsdp_meshes(fsdp)]


def mesh_ranks(mesh: Any) -> tuple[int, ...]:
    """Of the default process group, in the part of a mesh that this process belongs to."""
    return tuple(mesh.mesh.flatten().tolist())


def fsdp_meshes(fsdp: Any) -> list[Any]:
    """Over which an FSDP module shards its parameters."""
    return [group.mesh_info.mesh for group in _param_groups(fsdp)]


def _param_groups(fsdp: Any) -> list[Any]:
    state = fsdp._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)  # since torch 2.12 or before
    found = [state._fsdp_param_group] if several is None else several
    return [group for group in found if group is not None]


def fsdp_parameters(fsdp: Any) -> list[torch.nn.Parameter]:
    """What an FSDP module shards itself: not what another one inside it does, nor what it was told to ignore."""
    return [managed.sharded_param for group in _param_groups(fsdp) for managed in group.fsdp_params]


def keeps_unreduced(module: torch.nn.Module) -> bool:
    """Whether FSDP keeps gradients that it has not reduced: `set_requires_gradient_sync(False)`."""
    groups = (group for fsdp in fsdp_modules(module) for group in _param_groups(fsdp))
    return any(
        getattr(getattr(managed, "_unsharded_param", None), "grad", None) is not None
        or getattr(managed, "unsharded_accumulated_grad", None) is not None
        for group in groups
        for managed in group.fsdp_params
    )


def hook_reductions(fsdp: Any, hook: Callable[[torch.Tensor], None]) -> bool:
    """Calls `hook` with what each reduce-scatter of the module leaves. False: it has several groups of parameters, or
    this torch has no such hook (2.6)."""
    if not hasattr(fsdp, "set_all_reduce_hook") or len(_param_groups(fsdp)) > 1:
        return False
    fsdp.set_all_reduce_hook(hook)
    return True


def groups() -> int:
    """How many process groups this process has."""
    return len(distributed_c10d._world.pg_map)


def is_foreign_group(value: Any) -> bool:
    """Whether `value` is a process group that torch has not made in the world of this process."""
    kinds = (dist.ProcessGroup, torch._C._distributed_c10d.Backend)
    return isinstance(value, kinds) and value not in distributed_c10d._world.pg_map


def not_compiled(part: Any) -> Any:
    """The module inside of what `torch.compile` returns; anything else as it is."""
    return getattr(part, "_orig_mod", part) if isinstance(part, torch.nn.Module) else part


def forget_unscaled(part: Any) -> None:
    """Makes a GradScaler forget which gradients it has unscaled: those of a step that was interrupted."""
    if isinstance(part, torch.amp.GradScaler):
        part._per_optimizer_states.clear()


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """False for a wrapper that has the type of an optimizer, but not what its constructor makes."""
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def has_comm_hook(ddp: DistributedDataParallel) -> bool:
    return bool(getattr(ddp, "_comm_hooks", ())) or getattr(ddp, "mixed_precision", None) is not None


def uses_default_group(ddp: DistributedDataParallel) -> bool:
    return ddp.process_group is dist.group.WORLD


def schedule_classes(module: Any) -> list[Any]:
    """Those of pipelines that define a step of their own. module: torch.distributed.pipelining.schedules."""
    base = module._PipelineSchedule
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base)]
    return [each for each in found if "step" in vars(each)]


def stages_of(schedule: Any) -> list[Any]:
    """The stages of a pipeline that are in this process."""
    return list(getattr(schedule, "_stages", None) or [schedule._stage])


def microbatches_of(schedule: Any) -> int | None:
    """Into how many it divides tensors of a batch; None: in a way of the script's."""
    return None if schedule._args_chunk_spec else int(schedule._n_microbatches)


def pinned(batch: Any) -> Any:
    """As a DataLoader's `pin_memory=True`."""
    return _pin_memory.pin_memory(batch) if torch.cuda.is_available() else batch


def hide_loader() -> None:
    """`get_worker_info()` in this process of a DataLoader returns None from now on."""
    _worker._worker_info = None
