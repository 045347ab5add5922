"""The same training under torchft 0.2: a replica of one process. Writes the ledger of
hack/chaos/script.py.

Its data loader continues where the replica's previous process ended, as if it was saved after every batch.
"""

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torchft  # type: ignore[import-not-found]  # not among the project's packages: see systems.py
import torchft.ddp  # type: ignore[import-not-found]
from torch import nn

LEDGER = Path(os.environ["LEDGER"])
STEP_SECONDS = 0.02
MEMBER = os.environ["ELASTICJOB_MEMBER_ID"]
BATCH = 2
HEARTBEAT = datetime.timedelta(milliseconds=50)


def hook(manager: Any, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """torchft's own ends the process if a collective fails: `assert fut._fut`."""
    work = manager.allreduce(bucket.buffer())
    work.wait()
    future: torch.futures.Future[torch.Tensor] | None = getattr(work.get_future(), "_fut", None)
    if future is None:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
    return future


def position() -> int:
    """How many batches this replica's earlier processes have drawn."""
    return sum(log.read_text().count('"event": "work"') for log in LEDGER.glob(f"{MEMBER}.*.jsonl"))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torchft.ddp.DistributedDataParallel._comm_hook = staticmethod(hook)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    inner = torch.optim.SGD(network.parameters(), lr=1e-9)

    def load(state: Any) -> None:
        network.load_state_dict(state["network"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"network": network.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=2,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=MEMBER,
        hostname="127.0.0.1",
        heartbeat_interval=HEARTBEAT,
        timeout=datetime.timedelta(seconds=10),
    )
    model = torchft.ddp.DistributedDataParallel(manager, network)
    optimizer = torchft.Optimizer(manager, inner)
    drawn, shard = position(), int(MEMBER.rpartition("-")[2]) * 10**9
    with (LEDGER / f"{MEMBER}.{time.monotonic_ns()}.{os.getpid()}.jsonl").open("a", buffering=1) as log:

        def write(event: str, **fields: Any) -> None:
            log.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")

        write("begin", member=MEMBER, process=os.getpid(), rank=0, world=0, round=0, run="", fence="")
        while True:
            until = time.monotonic() + STEP_SECONDS
            step = manager.current_step() + 1
            samples = [shard + BATCH * drawn + number for number in range(BATCH)]
            write("work", step=step, epoch=0, samples=samples)
            drawn += 1
            optimizer.zero_grad()
            model(torch.randn(BATCH, 32)).square().mean().backward()
            before = manager.current_step()
            optimizer.step()
            now = manager.current_step()
            if now > before and manager.is_participating():
                if now != step:  # it has received the state in between
                    write("work", step=now, epoch=0, samples=samples)
                write("done", step=now, generation=str(manager._quorum_id), world=manager.num_participants())
            time.sleep(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    main()
