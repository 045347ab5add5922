"""Which ranks of a process group train on different samples, and whether what must be the same on several is."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from elasticjob_runtime.training.session import torch_sharding
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.world import SessionError
from elasticjob_runtime.training.sharded import ranks


def place_of(parts: Parts, data_parallel: Any, *, in_replica: bool) -> tuple[int, int] | None:
    """This rank's number among those that take different samples, and how many there are; None: all ranks of the
    process group do, as with DDP and FSDP. With tensor and pipeline parallelism, one does.

    data_parallel: what the user says, a DeviceMesh of one dimension or (rank, size); None: nothing. Raises TypeError if
    it is neither, or if it is needed.
    """
    if data_parallel is not None:
        return _given(data_parallel, ranks.size())
    if parts.are_sharded:
        fsdp = [found for module in parts.modules for found in torch_sharding.fsdp_modules(module)]
        sizes = {_product(mesh) for module in fsdp for mesh in torch_sharding.mesh_sizes(module)}
        if sizes - {ranks.size()}:
            raise TypeError(
                "ElasticSession: the model is sharded in more than one way, so say which ranks take different samples: "
                'data_parallel=mesh["..."], the dimension that fully_shard() was given'
            )
        one = not fsdp and not any(_is_fsdp1(part) for module in parts.modules for part in module.modules())
        return (0, 1) if one else None
    return (0, 1) if in_replica else None


def check_models(parts: Parts) -> None:
    """Collective. Raises SessionError, on all ranks, if some of them have sharded their models differently."""
    layouts = ranks.gather(parts.sharded_layouts())
    for rank, own in enumerate(layouts):
        for mesh, digest in own.items():
            others = [other for other in mesh if layouts[other].get(mesh) != digest]
            if others:
                raise SessionError(
                    f"ranks {rank} and {others[0]} have sharded different models: all ranks must build the same one, "
                    "and call fully_shard() and parallelize_module() for the same modules"
                )


def check_samples(parts: Parts, positions: Sequence[int], batch: Any) -> None:
    """Collective. Raises SessionError, on all ranks, if ranks that hold parts of the same layers were given different
    samples. positions: of this rank's samples in the epoch; batch: what they have become."""
    content = _digest(batch) if parts.are_sharded else ""  # the stages of a pipeline may use different parts of it
    given = ranks.gather((_place_in_fsdp(parts), (tuple(positions), content)))
    first: dict[Hashable, int] = {}
    for rank, (place, samples) in enumerate(given):
        other = first.setdefault(place, rank)
        if given[other][1] != samples:
            raise SessionError(
                f"ranks {other} and {rank} compute parts of the same layers, and were given different samples: "
                "data_parallel is the dimension of the mesh that fully_shard() was given, (0, 1) without FSDP; and the "
                "data set must return the same on both"
            )


def _place_in_fsdp(parts: Parts) -> tuple[int, ...]:
    """Where this rank is in the largest mesh that parameters are sharded over by FSDP; ranks at different places
    compute with different samples. Empty without FSDP."""
    modules = [found for module in parts.modules for found in torch_sharding.fsdp_modules(module)]
    meshes = [mesh for module in modules for mesh in torch_sharding.fsdp_meshes(module)]
    return tuple(max(meshes, key=lambda mesh: mesh.size()).get_coordinate()) if meshes else ()


def _digest(batch: Any) -> str:
    """Of the tensors, numbers and texts in it."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested:
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(leaf, (int, float, str, bytes)):
            digest.update(repr(leaf).encode())
    return digest.hexdigest()


def _given(data_parallel: Any, ranks: int) -> tuple[int, int]:
    if isinstance(data_parallel, tuple):
        rank, size = data_parallel
    elif getattr(data_parallel, "ndim", 0) == 1:
        rank, size = data_parallel.get_local_rank(), data_parallel.size()
    else:
        raise TypeError(
            "ElasticSession: data_parallel is a DeviceMesh of one dimension, or (rank, size), not "
            f"{type(data_parallel).__name__}"
        )
    if not 0 <= rank < size <= ranks:
        raise TypeError(f"ElasticSession: data_parallel=({rank}, {size}) is not possible with {ranks} ranks")
    return rank, size


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _is_fsdp1(module: Any) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"
