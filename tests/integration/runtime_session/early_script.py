"""Trains with a session. The member EARLY stops after 10 steps, by something that the other ranks do not know."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from elasticjob_runtime.training import ElasticSession
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
session = ElasticSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(session.epoch, 100):
    for batch in session.batches([torch.ones(2)] * 6, batch_size=6):
        with session.step():
            time.sleep(0.02)
            model(batch).sum().backward()
    if session.committed_steps >= 10 and os.environ["ELASTICJOB_MEMBER_ID"] == os.environ["EARLY"]:
        break
