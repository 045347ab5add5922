"""How long saving in the background blocks a training: `python -m benchmarks.snapshots.saves [MIB ...]`.

Plain copies, `save_checkpoint(block=False)`, the same sharded, and torch's `dcp.async_save` alternate, so that all see
the same machine. Each save is over before the next begins.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from elasticjob_runtime.training.checkpoint.save_load import _process, save_durable
from elasticjob_runtime.training.sharded import saving
from elasticjob_runtime.training.sharded.contents import Contents
from torch import nn

TENSORS = 64
RUNS = 5


def measure(mib: int) -> None:
    model = nn.ParameterDict({str(number): torch.rand((mib << 18) // TENSORS) for number in range(TENSORS)})
    contents = Contents({"model": model})
    target = {name: tensor.detach().clone() for name, tensor in model.items()}

    def plain_copy(_folder: str, _step: int) -> Callable[[], object]:
        for name, tensor in model.items():
            target[name].copy_(tensor.detach())
        return lambda: None

    def save(folder: str, step: int) -> Callable[[], object]:
        save_durable(folder, {"model": model.state_dict(), "step": step}, step, 1, block=False)
        return _process.saving.wait if _process.saving is not None else lambda: None

    def sharded(folder: str, step: int) -> Callable[[], object]:
        saving.save(folder, contents, step, 1, block=False)
        return saving.finish

    def dcp_async(folder: str, step: int) -> Callable[[], object]:
        saved = dcp.async_save(model.state_dict(), checkpoint_id=pathlib.Path(folder) / str(step))
        return saved.result  # type: ignore[union-attr]

    kinds = [plain_copy, save, sharded, dcp_async]
    blocked: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
    grown: dict[str, int] = {}
    for run in range(RUNS + 1):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                before = _peak()
                began = time.perf_counter()
                finish = kind(folder, run + 1)
                blocked[kind.__name__].append(time.perf_counter() - began)
                finish()
                grown.setdefault(kind.__name__, _peak(reset=False) - before)
    bare = statistics.median(blocked["plain_copy"][1:])
    for name, (first, *others) in blocked.items():
        print(
            f"{mib:>5} MiB  {name:<10}  {statistics.median(others):.3f} s ({min(others):.3f} to {max(others):.3f}), "
            f"{statistics.median(others) / bare:.2f} copies; the first {first:.3f} s, and {grown[name]} MiB more memory"
        )


def _peak(*, reset: bool = True) -> int:
    """MiB of this process: the most since the last reset; after one, those of now."""
    if reset:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    status = dict(line.split(":") for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) >> 10


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    for mib in [int(each) for each in sys.argv[1:]] or [64, 512, 1434]:
        print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {RUNS} runs")
        measure(mib)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
