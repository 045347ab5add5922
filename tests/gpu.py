"""Tests that need GPUs: `@pytest.mark.gpu`, or `@pytest.mark.gpu(2)` for two of them. `make check-gpu` runs them.

With SHARED_GPU=1, processes that need one each share those that there are. NCCL refuses that within a host, so each
process says that it is on another one (NCCL_HOSTID): they communicate over sockets. Slow, but all of NCCL's own code.
"""

from __future__ import annotations

import functools
import os

import pytest


def skip_without_gpus(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    needed = marker.args[0] if marker.args else 1
    if count() < needed:
        pytest.skip(f"needs {needed} GPU{'s' if needed > 1 else ''}; there are {count()}")


SHARED = os.environ.get("SHARED_GPU") == "1"
MOST = 16
"""How many processes may share GPUs."""


def count() -> int:
    """How many processes can have one."""
    return MOST if SHARED and _devices() else _devices()


def device(index: int) -> str:
    """That of the process `index`, such as cuda:1."""
    return f"cuda:{index % _devices() if SHARED else index}"


def environment(process: str) -> dict[str, str]:
    """What a process needs beside; process: a name that no other one has."""
    hosts = {"NCCL_HOSTID": process, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return hosts if SHARED else {}


@functools.cache
def _devices() -> int:
    import torch  # not in tests that need none

    return torch.cuda.device_count()
