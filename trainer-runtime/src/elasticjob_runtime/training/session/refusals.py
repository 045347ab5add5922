"""Before a session begins: whether it can continue in place, and torch warmed up."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training.session import agent, torch_private, torch_sharding
from elasticjob_runtime.training.session.agent import SessionAgent
from elasticjob_runtime.training.session.backend import Gloo
from elasticjob_runtime.training.session.data_parallel import check_models
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.nccl import Nccl
from elasticjob_runtime.training.session.parts import Parts, parameters_of
from elasticjob_runtime.training.session.replicas import Replicas
from elasticjob_runtime.training.sharded import ranks

logger = logging.getLogger("elasticjob_runtime.training")

engines: list[Engine] = []
"""Those of this process: at most one."""


def new_engine(parts: Parts) -> tuple[Engine | None, Replicas | None]:
    """None: without an agent that can continue in place, or because something is against it, which is logged; without
    replicas. Raises TypeError for what cannot be trained in replicas: without a session, they do not train together."""
    connected = agent.connect()
    if connected is not None and engines:
        raise TypeError(
            "ElasticSession: this process has a session already, which has formed its process group. Give that one all "
            "models and optimizers of the script, also those of its next phase"
        )
    engine, replicas = _new_engine(parts, connected)
    engines.extend([engine] if engine is not None else [])
    return engine, replicas


def _new_engine(parts: Parts, connected: SessionAgent | None) -> tuple[Engine | None, Replicas | None]:
    if in_replica():
        if connected is None:
            raise TypeError("ElasticSession: replicas need an agent that continues in place (elasticrun --in-place=on)")
        if problem := torch_private.missing() or refusal_in_replica(parts):
            raise TypeError(f"ElasticSession: {problem}")
        ranks.talk_over_gloo()
        check_models(parts)
        _warm_up()
        replicas = Replicas(parts, _backend_for(parts.modules))
        engine = Engine(connected, replicas)
        replicas.use(engine)
        return engine, replicas
    return (None if connected is None else _engine_of_one_world(parts, connected)), None


def in_replica() -> bool:
    """Whether this process belongs to a replica."""
    return Env.REPLICA in os.environ


def refusal_in_replica(parts: Parts) -> str:
    """Why this training cannot be in replicas; empty: nothing is against it."""
    return next(_problems_in_replica(parts), "")


def _problems_in_replica(parts: Parts) -> Iterator[str]:
    backend = dist.get_backend_config() if dist.is_initialized() else ""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    modules = [module for model in parts.modules for module in model.modules()]
    if size > 1 and (not backend or dist.get_world_size() != size):
        yield (
            f"this replica has {size} ranks, so call torch.distributed.init_process_group() before the session; it "
            "takes rank and size from the environment"
        )
    if parts.ddp:
        yield "a model in a replica is in DistributedDataParallel: leave that out, and call session.reduce_gradients()"
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in modules):
        yield "a model in a replica is in FullyShardedDataParallel (FSDP1): use fully_shard (FSDP2)"
    yield from _problems_of_optimizers(parts)
    if any(isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse for module in modules):
        yield "the model has an embedding with sparse gradients, which replicas cannot reduce: leave sparse=True out"
    fsdp = [found for model in parts.modules for found in torch_sharding.fsdp_modules(model)]
    if any(len(mesh) > 1 for module in fsdp for mesh in torch_sharding.mesh_sizes(module)):
        yield "a model in a replica is in HSDP: give fully_shard() a mesh of one dimension; replicas are the other one"
    yield from _problems_of_devices(parts, backend)


def _problems_of_devices(parts: Parts, backend: str) -> Iterator[str]:
    devices = _devices(parts.modules)
    elsewhere = [device for device in devices if device.type != "cpu"]
    if not elsewhere:
        if backend and "gloo" not in backend:
            yield f"the model is on the CPU, and the process group of its replica uses {backend}: use gloo"
    elif backend and "nccl" not in backend:
        yield f"the model is on {elsewhere[0]}, and the process group of its replica uses {backend}: use NCCL for a GPU"
    elif problem := _refusal_of_nccl(devices, os.environ.get(Env.IN_PLACE_NCCL) == "1"):
        yield problem
    elif any(isinstance(part, torch.amp.GradScaler) for part in parts.others):
        yield (
            "a gradient scaler looks at gradients on a GPU before the replicas have agreed on them: train in bfloat16, "
            "without one"
        )
    if any(torch_sharding.is_offloaded(parameter) for model in parts.modules for parameter in model.parameters()):
        yield "a model in a replica is offloaded to the CPU: leave offload_policy out of fully_shard()"


def _problems_of_optimizers(parts: Parts) -> Iterator[str]:
    if len(parts.optimizers) != 1:
        yield f"in a replica, a session has exactly one optimizer, and this one has {len(parts.optimizers)}"
    if unknown := _unknown_parameters(parts):
        yield (
            f"{unknown} parameters of the optimizer belong to no model of the session, so their gradients would "
            "differ between replicas: give the session all models"
        )
    for optimizer in parts.optimizers:
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            yield "the optimizer's state is sharded by ZeroRedundancyOptimizer: use fully_shard (FSDP2)"
        if names := [name for name, value in vars(optimizer).items() if torch_private.is_foreign_group(value)]:
            yield (
                f"the optimizer has a process group of its own ({type(optimizer).__name__}.{names[0]}), and could "
                "communicate with other replicas, which come and go: leave that to the session"
            )


def _unknown_parameters(parts: Parts) -> int:
    known = {id(parameter) for module in parts.modules for parameter in module.parameters()}
    given = [parameter for optimizer in parts.optimizers for parameter in parameters_of(optimizer)]
    return sum(id(parameter) not in known for parameter in given)


def _problem_of_parameters(parts: Parts) -> str:
    unknown = _unknown_parameters(parts)
    if not unknown:
        return ""
    return (
        f"{unknown} parameters of the optimizers belong to no model of the session, and a process that joins would not "
        "receive them: give the session the module that has them, like ElasticSession(..., criterion=criterion)"
    )


def _engine_of_one_world(parts: Parts, connected: SessionAgent) -> Engine | None:
    backend = dist.get_backend_config() if dist.is_initialized() else ""
    nccl = os.environ.get(Env.IN_PLACE_NCCL) == "1"
    problem = torch_private.missing() or refusal(parts, backend=backend, groups=torch_private.groups(), nccl=nccl)
    problem = problem or _problem_of_parameters(parts) or torch_private.swap_problem()
    if problem:
        logger.warning("this process restarts at every change, and cannot continue in place: %s", problem)
        return None
    _warm_up()
    return Engine(connected, _backend_for(parts.ddp))


def refusal(parts: Parts, *, backend: str, groups: int, nccl: bool) -> str:
    """Why this training cannot continue in place, and restarts at every change instead. Empty: nothing is against it.
    backend: of the default process group, as `get_backend_config` returns it ("cpu:gloo,cuda:nccl"; `get_backend` says
    "undefined" if the script names none), "" without one; groups: of this process; nccl: whether the user wants to
    continue in place with NCCL."""
    if parts.are_sharded:
        return (
            "the model is sharded, and no process has the state of a lost one; it continues from the latest snapshot "
            "in the memory of the agents. To continue in place, divide the job into replicas that each have the whole "
            "model: workers.replicaSize, or elasticrun --replica-size"
        )
    if any(type(optimizer).__name__ == "ZeroRedundancyOptimizer" for optimizer in parts.optimizers):
        return "the optimizer's state is sharded (ZeroRedundancyOptimizer), and no process has that of a lost one"
    if not parts.ddp:
        return "no model of the session is in DistributedDataParallel"
    for module in parts.modules:
        if any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in module.modules()):
            return (
                "the model has SyncBatchNorm, which communicates inside of the forward pass; use BatchNorm, or layers "
                "that do not depend on the batch (GroupNorm)"
            )
    if groups > 1:
        return "the script has process groups of its own, which would end with each change"
    if "nccl" in backend:
        return _refusal_of_nccl(_devices(parts.ddp), nccl)
    if elsewhere := [device for device in _devices(parts.ddp) if device.type != "cpu"]:
        # What ends with the world is a future without a stream: gradients may be read before gloo has copied them back.
        return f"the model is on {elsewhere[0]} and the process group uses gloo, which has been tested on CPUs only"
    return ""


def _refusal_of_nccl(devices: Sequence[torch.device], wanted: bool) -> str:
    """devices: of the models that are trained."""
    if not wanted:
        return f"continuing in place with NCCL has been tested on one GPU only; {Env.IN_PLACE_NCCL}=1 tries it"
    if [device.type for device in devices] != ["cuda"]:
        return "with NCCL, all models of the session must be on the same GPU"
    return torch_private.missing_nccl()


def _backend_for(models: Sequence[torch.nn.Module]) -> Gloo | Nccl:
    """What the session uses if nothing is against it. models: those that are trained."""
    devices = _devices(models)
    if not devices or devices[0].type == "cpu":
        return Gloo()
    logger.warning("continuing in place with NCCL, which has been tested on one GPU only (%s=1)", Env.IN_PLACE_NCCL)
    return Nccl(devices[0])


def _devices(models: Sequence[torch.nn.Module]) -> list[torch.device]:
    return list(dict.fromkeys(parameter.device for model in models for parameter in model.parameters()))


def _warm_up() -> None:
    """torch initializes much at the first step of a process, for which all others of its world would wait."""
    parameter = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    state = torch.get_rng_state()
    (parameter @ torch.ones(8, 8)).square().mean().backward()
    step = type(optimizer).step
    getattr(step, "__wrapped__", step)(optimizer)  # without torch's hooks, which count the training's steps
    torch.set_rng_state(state)
