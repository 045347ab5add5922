"""Whether a process can be forked, so that its children are as good as fresh interpreters."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterable

from elasticjob_runtime.workers import linux


def fork_problem() -> str | None:
    """Why this process is not safe to fork, as a predicate of the module imported last; None: it is."""
    if problem := thread_problem(expected=1):
        return problem
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "importing it initialises CUDA"
    if device := open_gpu_driver(linux.open_files()):
        return f"importing it opens {device}"
    if children := linux.living_children():
        return f"importing it starts {len(children)} process{'es' if len(children) > 1 else ''}"
    if linux.maps_semaphores():
        return "importing it makes a semaphore, which all workers would share"
    if connections := network_sockets():
        return f"importing it opens {connections} network connection{'s' if connections > 1 else ''}"
    return None


def thread_problem(*, expected: int) -> str | None:
    """None: this process has no more than `expected` threads."""
    threads = linux.threads() - expected
    return f"importing it starts {threads} thread{'s' if threads > 1 else ''}" if threads > 0 else None


def open_gpu_driver(files: Iterable[str]) -> str | None:
    """The file that a process has open once its CUDA or ROCm driver is initialised, which no fork survives. Using NVML
    does not open it.

    >>> open_gpu_driver(["/dev/null", "/dev/nvidiactl", "/dev/nvidia-uvm"])
    '/dev/nvidia-uvm'
    """
    return next((file for file in files if file in ("/dev/nvidia-uvm", "/dev/kfd")), None)


def network_sockets() -> int:
    """How many IPv4 and IPv6 sockets this process has open."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                with socket.socket(fileno=os.dup(int(entry))) as duplicate:
                    count += duplicate.family in (socket.AF_INET, socket.AF_INET6)
    return count
