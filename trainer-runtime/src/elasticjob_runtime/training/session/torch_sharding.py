"""What the session uses of sharded tensors (DTensor) and FSDP2, much of it beyond their public interfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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
