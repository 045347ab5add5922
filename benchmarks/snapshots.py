"""Measures snapshots of a training state in memory: `python -m benchmarks.snapshots --gib 1 --runs 20`.

Copies and snapshots alternate, so that both see the same machine. CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.memory import copying
from elasticjob_runtime.training.memory.buffers import Buffer
from elasticjob_runtime.training.memory.format import Header, Layout, purpose
from elasticjob_runtime.training.memory.pair import Pair, Recovered

TENSORS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the state")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size = int(arguments.gib * (1 << 30))
    state = {"tensors": [torch.rand(size // 4 // TENSORS) for _ in range(TENSORS)], "step": 0}
    other = torch.rand(size // 4)
    target = torch.rand(size // 4)
    pair = Pair.create()
    print(f"{size / (1 << 30):g} GiB in {TENSORS} tensors, torch {torch.__version__}, {copying.threads()} thread(s)")
    new = [timed(lambda step=step: pair.write(state, header(step))) for step in (1, 2)]  # type: ignore[misc]
    copies, snapshots = [], []
    for step in range(3, 3 + arguments.runs):
        copies.append(timed(lambda: ctypes.memmove(target.data_ptr(), other.data_ptr(), size)))
        snapshots.append(timed(lambda step=step: pair.write(state, header(step))))  # type: ignore[misc]
    report("memcpy", copies)
    report("snapshot", snapshots)
    report("first snapshot into a buffer", new)
    ratio = statistics.median(cpu for _, cpu in snapshots) / statistics.median(cpu for _, cpu in copies)
    wall = statistics.median(wall for wall, _ in snapshots) / statistics.median(wall for wall, _ in copies)
    print(f"snapshot / memcpy: {ratio:.2f} by CPU time, {wall:.2f} by wall time")
    read(pair, arguments.runs // 4 or 1)
    used = sum(os.fstat(fd).st_blocks * 512 for fd in pair.fds)
    print(f"memory of both buffers: {used / size:.3f} of the state")


def read(pair: Pair, runs: int) -> None:
    """As the next process does."""
    found = max(pair.fds, key=lambda fd: of.step if (of := Buffer(os.dup(fd)).header()) is not None else 0)
    checked, loaded = [], []
    for _ in range(runs):
        buffer = Buffer(os.dup(found))
        of = buffer.header()
        assert of is not None
        recovered = Recovered(buffer, of)
        checked.append(timed(recovered.is_intact))
        loaded.append(timed(recovered.load))
        recovered.close()
    report("check", checked)
    report("load", loaded)


def header(step: int) -> Header:
    return Header(
        fence=Fence(1, 0, 1),
        step=step,
        purpose=purpose("benchmark"),
        taken_at=time.time(),
        layout=Layout(structure_size=0, payload_size=0),
    )


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def report(what: str, times: Sequence[tuple[float, float]]) -> None:
    wall, cpu = sorted(item for item, _ in times), sorted(item for _, item in times)
    load = pathlib.Path("/proc/loadavg").read_text().split()[0]
    print(
        f"{what:<30} wall {statistics.median(wall):.3f} s ({wall[0]:.3f} to {wall[-1]:.3f}), "
        f"CPU {statistics.median(cpu):.3f} s ({cpu[0]:.3f} to {cpu[-1]:.3f}), {len(times)} runs, load {load}"
    )


if __name__ == "__main__":
    main()
