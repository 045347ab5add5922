"""What snapshots, copies and checkpoints of sharded state take: `python -m benchmarks.sharded [MIB] [TENSORS]`.

One process with one rank, its agent's socket, and a neighbour on the same machine. The state is FSDP2's: parameters and
Adam's two moments.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from elasticjob_runtime.agent.copies import PeerCopies
from elasticjob_runtime.agent.worker_server import WorkerServer
from elasticjob_runtime.contract import SECRET_BYTES, Env, Neighbour, SecretValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.rendezvous.peer_server import PeerServer
from elasticjob_runtime.training.memory import agent_memory
from elasticjob_runtime.training.sharded import saving, storage
from elasticjob_runtime.training.sharded.contents import Contents
from elasticjob_runtime.training.sharded.memory import Shards
from elasticjob_runtime.training.sharded.reader import plan_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

REPEATS = 7


@contextlib.contextmanager
def agents(rate: float) -> Iterator[str]:
    """The socket of an agent, which copies snapshots to a neighbour."""
    secret = SecretValue(secret=os.urandom(SECRET_BYTES).hex())
    loops = [EventLoop(), EventLoop()]
    copies = PeerCopies(loops[0], "a", "127.0.0.1", rate=rate)
    theirs = PeerCopies(loops[1], "b", "127.0.0.2")
    server = WorkerServer(loops[0], lambda _progress: None, copies=copies)
    peers = PeerServer("b1", loops[1], lambda connection, _session: connection.close())
    peers.on_copy = theirs.serve
    peers.open(secret)
    copies.use_secret(secret)
    copies.follow([Neighbour(name="b", incarnation="b1", address="127.0.0.1", peer_port=peers.port)])
    stop = threading.Event()

    def serve(loop: EventLoop) -> None:
        while not stop.is_set():
            loop.wait(0.05)

    threads = [threading.Thread(target=serve, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    yield server.path
    stop.set()
    for item in threads:
        item.join()


def model_of(size: int, tensors: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """size: MiB of parameters and moments."""
    width = size * (1 << 20) // 12 // tensors // 1024
    model = nn.Sequential(*(nn.Linear(1024, width, bias=False) for _ in range(tensors)))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model, torch.optim.Adam(model.parameters())


def median(function: Callable[[], object], repeats: int = REPEATS) -> str:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})"


def main() -> None:
    size, tensors = (int(item) for item in (*sys.argv[1:], "256", "64")[:2]) if len(sys.argv) > 2 else (256, 64)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    model, optimizer = model_of(size, tensors)
    contents = Contents({"model": model, "optimizer": optimizer})
    contents.collect()
    flat = torch.empty(size << 18)
    target = torch.empty(size << 18)
    target.copy_(flat)
    print(f"{size} MiB in {3 * tensors} tensors; load {os.getloadavg()[0]:.1f}; s, median (min to max)")
    print("a bare copy:", median(lambda: target.copy_(flat)))
    print("collect the state and plan:", median(lambda: plan_of(contents.collect())))
    os.environ.update({Env.FENCE: "1.0.1", Env.ROUND: "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    for rate in (1e6, 256.0):
        with agents(rate) as path:
            os.environ[Env.AGENT_SOCKET] = path
            agent_memory._process = agent_memory._Process()
            shards = Shards("benchmark")
            keeps, copies = [], []
            for step in range(REPEATS + 2):
                while shards.is_busy(contents):
                    time.sleep(0.001)
                began, cpu = time.perf_counter(), time.process_time()
                shards.keep(contents, step)
                kept = time.perf_counter()
                while shards.is_busy(contents):
                    time.sleep(0.001)
                keeps.append(kept - began)
                copies.append((time.perf_counter() - kept, time.process_time() - cpu - (kept - began)))
            seconds = sorted(item for item, _ in copies[2:])
            print(f"snapshot: {statistics.median(keeps[2:]):.3f} ({min(keeps[2:]):.3f} to {max(keeps[2:]):.3f})")
            print(
                f"copy to a neighbour, at most {rate:g} MiB/s: {statistics.median(seconds):.3f} "
                f"({seconds[0]:.3f} to {seconds[-1]:.3f}), CPU time of both agents "
                f"{statistics.median(cpu for _, cpu in copies[2:]):.3f}"
            )
            print("restore from memory:", median(functools.partial(shards.restore, contents, None)))
    with tempfile.TemporaryDirectory() as folder:
        print("save on the disk:", median(lambda: saving.save(folder, contents, 1, 1), 3))
        begins = []
        for step in range(REPEATS):
            saving.finish()
            began = time.perf_counter()
            saving.save(folder, contents, step, 1, block=False)
            begins.append(time.perf_counter() - began)
        saving.finish()
        print(
            f"the same in the background, until training continues: {statistics.median(begins):.3f} "
            f"({min(begins):.3f} to {max(begins):.3f})"
        )

        def load() -> None:
            found = storage.find(folder, [])
            assert isinstance(found, dict)
            storage.load(folder, found, contents)

        print("load from the disk:", median(load, 3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
