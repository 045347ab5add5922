"""What the session uses of torch and gloo beyond their public interfaces, with `torch_reducer` and `torch_sharding`.
Nothing else here knows these names.

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
from collections.abc import Iterator, Mapping
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
    held = {name: [function] for name, function in connected.items()}
    vars(distributed_c10d).update({name: _class_of(originals[name], function) for name, function in held.items()})
    try:
        yield
    finally:
        vars(distributed_c10d).update(originals)
        for functions in held.values():
            functions.clear()


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
            return any(instance is known for known in held)

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


def set_timeout(gloo: Gloo, timeout: float) -> None:
    """timeout: s that each operation of a group that torch does not know may take, from now on."""
    change = getattr(gloo, "set_timeout", None) or gloo._set_default_timeout  # public since torch 2.15
    change(datetime.timedelta(seconds=timeout))


def all_reduce(gloo: Gloo, tensor: torch.Tensor, *, lowest: bool = False) -> Any:
    """The work that makes `tensor` the sum over the ranks of a group that torch does not know, or the lowest."""
    options = distributed_c10d.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MIN if lowest else dist.ReduceOp.SUM
    return gloo.allreduce([tensor], options)


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


def schedule_classes(module: Any) -> list[Any]:
    """Those of pipelines that define a step of their own. module: torch.distributed.pipelining.schedules."""
    base = module._PipelineSchedule
    found = [
        attribute for attribute in vars(module).values() if isinstance(attribute, type) and issubclass(attribute, base)
    ]
    return [schedule for schedule in found if "step" in vars(schedule)]


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
