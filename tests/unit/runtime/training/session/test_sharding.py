"""Sessions of sharded models have a state of their own, and others do not pay for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training import ElasticSession
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.unit.runtime.training.sharded.worlds import needs_fsdp2

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

IMPORTS = """
import sys
from elasticjob_runtime.training import ElasticSession
assert not {"torch.distributed.tensor", "torch.distributed.checkpoint"} & set(sys.modules)
"""


def test_sessions_do_not_import_what_only_sharded_models_need() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=100)


@needs_fsdp2
@pytest.mark.usefixtures("group")
def test_a_sharded_model_trains_in_a_session() -> None:
    model = nn.Linear(2, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = ElasticSession(model=model, optimizer=optimizer)
    for batch in session.batches(torch.ones(8, 2), batch_size=4):
        with session.step():
            (model(batch).mean() * session.weight).backward()
            optimizer.step()
    assert session.committed_steps == 2
    assert session.epoch == 1


class FullyShardedDataParallel(nn.Module):
    """FSDP1 needs a GPU."""


def test_the_first_version_of_fsdp_is_refused() -> None:
    with pytest.raises(TypeError, match=r"use fully_shard \(FSDP2\)"):
        ElasticSession(model=FullyShardedDataParallel())
