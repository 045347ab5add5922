"""What cannot continue in place is refused with a sentence, and what cannot work at all with an error."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from elasticjob_runtime.training.session import agent, refusals, torch_private, torch_sharding
from elasticjob_runtime.training.session.nccl import Nccl
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.refusals import _warm_up, refusal, refusal_in_replica
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.unit.runtime.training.sharded.worlds import needs_fsdp2

pytestmark = pytest.mark.timeout(60)


def refused(backend: str = "gloo", groups: int = 1, nccl: bool = False, **parts: Any) -> str:
    return refusal(Parts(parts), backend=backend, groups=groups, nccl=nccl)


@pytest.mark.usefixtures("group")
def test_models_in_ddp_continue_in_place() -> None:
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    assert refused(model=ddp, optimizer=torch.optim.Adam(ddp.parameters())) == ""
    assert refused(model=torch.compile(ddp)) == ""


@pytest.mark.usefixtures("group")
def test_what_cannot_continue_in_place_says_why() -> None:
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    normed = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    normed.module[1] = nn.SyncBatchNorm(2)
    sharded = fully_shard(nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1,)))
    elsewhere = DistributedDataParallel(nn.Linear(2, 1)).to("meta")  # as on a GPU
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam)
    assert "workers.replicaSize, or elasticrun --replica-size" in refused(model=sharded)
    assert "no model of the session is in DistributedDataParallel" in refused(model=nn.Linear(2, 1))
    assert "SyncBatchNorm" in refused(model=normed)
    assert "ELASTICJOB_IN_PLACE_NCCL=1 tries it" in refused(model=ddp, backend="cpu:gloo,cuda:nccl")
    assert "must be on the same GPU" in refused(model=ddp, backend="cpu:gloo,cuda:nccl", nccl=True)
    assert "process groups of its own" in refused(model=ddp, groups=2)
    assert "the model is on meta and the process group uses gloo" in refused(model=elsewhere)
    assert "ZeroRedundancyOptimizer" in refused(model=ddp, optimizer=zero)


@pytest.mark.usefixtures("group")
def test_models_on_another_group_are_refused() -> None:
    own = dist.new_group([0])
    with pytest.raises(TypeError, match="must use the default process group"):
        ElasticSession(model=DistributedDataParallel(nn.Linear(2, 1), process_group=own))


@pytest.mark.usefixtures("group")
def test_a_hook_that_communicates_on_another_group_is_refused() -> None:
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    ddp.register_comm_hook(dist.new_group([0]), fp16_compress_hook)
    with pytest.raises(TypeError, match="hook has a process group of its own"):
        ElasticSession(model=ddp)


def test_parts_without_a_state_are_refused() -> None:
    with pytest.raises(TypeError, match="losses has no state_dict"):
        ElasticSession(model=nn.Linear(2, 1), losses=[1.0])


def test_bad_batches_are_refused_at_once() -> None:
    session = ElasticSession(model=nn.Linear(2, 1))
    with pytest.raises(TypeError, match="with a length"):
        session.batches(iter([1, 2]), batch_size=1)
    with pytest.raises(ValueError, match="at least 1: 0"):
        session.batches([1, 2], batch_size=0)
    with pytest.raises(ValueError, match="has no batch of 3"):
        session.batches([1, 2], batch_size=3, drop_last=True)
    for _ in session.batches([1, 2], batch_size=1):
        with pytest.raises(ZeroDivisionError), session.step():
            _ = 1 / 0
        break
    assert session.committed_steps == 0


class FullyShardedDataParallel(nn.Module):
    """FSDP1 needs a GPU."""


def refused_in_replica(**parts: Any) -> str:
    return refusal_in_replica(Parts(parts))


@needs_fsdp2
@pytest.mark.usefixtures("group")
def test_what_cannot_be_in_a_replica_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    adam: Any = torch.optim.Adam(model.parameters())
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    assert refused_in_replica(model=model, optimizer=adam) == ""
    sharded: Any = fully_shard(nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1,)))
    assert refused_in_replica(model=sharded, optimizer=torch.optim.Adam(sharded.parameters())) == ""
    hybrid: Any = fully_shard(nn.Linear(2, 1), mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")))
    assert "HSDP" in refused_in_replica(model=hybrid, optimizer=torch.optim.Adam(hybrid.parameters()))
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    assert "DistributedDataParallel" in refused_in_replica(model=ddp, optimizer=torch.optim.Adam(ddp.parameters()))
    assert "use fully_shard" in refused_in_replica(model=FullyShardedDataParallel(), optimizer=adam)
    assert "exactly one optimizer" in refused_in_replica(model=model, optimizer=adam, other=other, sgd=sgd)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    assert "ZeroRedundancyOptimizer" in refused_in_replica(model=model, optimizer=zero)
    adam.group = dist.GroupMember.WORLD
    assert refused_in_replica(model=model, optimizer=adam) == "", "what it does inside of the replica is its own"
    adam.group = torch_private.connect(dist.HashStore(), 0, 1, 5.0)  # type: ignore[attr-defined,arg-type]
    assert "could communicate with other replicas" in refused_in_replica(model=model, optimizer=adam)
    del adam.group
    sparse = nn.Embedding(2, 1, sparse=True)
    assert "sparse=True" in refused_in_replica(model=sparse, optimizer=torch.optim.SGD(sparse.parameters(), lr=0.1))
    assert "2 parameters of the optimizer belong to no model" in refused_in_replica(model=model, optimizer=sgd)
    meta = nn.Linear(2, 1, device="meta")
    assert "use NCCL for a GPU" in refused_in_replica(model=meta, optimizer=torch.optim.Adam(meta.parameters()))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "init_process_group() before the session" in refused_in_replica(model=model, optimizer=adam)


@pytest.mark.usefixtures("group")
def test_replicas_on_gpus_are_tried_only_if_the_user_wants_that(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1)
    sgd, gpus = torch.optim.SGD(model.parameters(), lr=0.1), [torch.device("cuda", 0)]
    monkeypatch.setattr(refusals, "_devices", lambda _: gpus)
    monkeypatch.setattr(torch_private, "missing_nccl", lambda: "")
    assert "the process group of its replica uses" in refused_in_replica(model=model, optimizer=sgd)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    assert "ELASTICJOB_IN_PLACE_NCCL=1 tries it" in refused_in_replica(model=model, optimizer=sgd)
    monkeypatch.setenv("ELASTICJOB_IN_PLACE_NCCL", "1")
    assert refused_in_replica(model=model, optimizer=sgd) == ""
    assert isinstance(refusals._backend_for([model]), Nccl)
    scaler = torch.amp.GradScaler("cpu")
    assert "gradient scaler" in refused_in_replica(model=model, optimizer=sgd, scaler=scaler)
    monkeypatch.setattr(torch_sharding, "is_offloaded", lambda _: True)
    assert "offload_policy" in refused_in_replica(model=model, optimizer=sgd)
    gpus.append(torch.device("cpu"))
    assert "must be on the same GPU" in refused_in_replica(model=model, optimizer=sgd)
    gpus.pop(0)
    assert "use gloo" in refused_in_replica(model=model, optimizer=sgd)


def test_replicas_need_an_agent_that_continues_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, they would train apart from each other."""
    monkeypatch.setenv("ELASTICJOB_REPLICA", "0")
    model = nn.Linear(2, 1)
    with pytest.raises(TypeError, match="--in-place=on"):
        ElasticSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_what_warms_torch_up_is_no_step_of_the_training() -> None:
    steps: list[object] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
    try:
        _warm_up()
    finally:
        hook.remove()
    assert steps == []


def test_parameters_of_an_optimizer_that_no_model_has_are_refused() -> None:
    model, temperature = nn.Linear(2, 1), nn.Parameter(torch.ones(()))
    parts = Parts({"model": model, "optimizer": torch.optim.SGD([*model.parameters(), temperature])})
    known = Parts({"model": model, "optimizer": torch.optim.SGD(model.parameters())})
    assert "1 parameters of the optimizers belong to no model of the session" in refusals._problem_of_parameters(parts)
    assert refusals._problem_of_parameters(known) == ""


def test_a_second_session_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "connect", object)
    monkeypatch.setattr(refusals, "_new_engine", lambda *_: (object(), None))
    monkeypatch.setattr(refusals, "engines", [])
    parts = Parts({"model": nn.Linear(2, 1)})
    refusals.new_engine(parts)
    with pytest.raises(TypeError, match=r"this process has a session already.* Give that one all models"):
        refusals.new_engine(parts)
