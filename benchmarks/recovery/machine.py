"""Facts about this machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

from benchmarks.recovery.report import Facts
from hack.cluster.programs import program


def facts() -> Facts:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    etcd = subprocess.run([program("etcd"), "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return {
        "cores": os.cpu_count() or 1,
        "cpu": model or platform.machine(),
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "etcd": etcd,
    }


def busy(seconds: float = 1.0) -> float:
    """The share of its processors' time that is in use, 0 to 1."""
    before = _times()
    time.sleep(seconds)
    used, total = (after - earlier for after, earlier in zip(_times(), before, strict=True))
    return used / total if total else 0.0


def _times() -> tuple[int, int]:
    times = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = times[3] + times[4]
    return sum(times) - idle, sum(times)
