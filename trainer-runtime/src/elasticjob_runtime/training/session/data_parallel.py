"""Which ranks of a process group train on different samples."""

from __future__ import annotations

from typing import Any

from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.parts import Parts
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
        fsdp = [found for module in parts.modules for found in torch_private.fsdp_modules(module)]
        sizes = {_product(mesh) for module in fsdp for mesh in torch_private.mesh_sizes(module)}
        if sizes - {ranks.size()}:
            raise TypeError(
                "ElasticSession: the model is sharded in more than one way, so say which ranks take different samples: "
                'data_parallel=mesh["..."], the dimension that fully_shard() was given'
            )
        one = not fsdp and not any(_is_fsdp1(part) for module in parts.modules for part in module.modules())
        return (0, 1) if one else None
    return (0, 1) if in_replica else None


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
