"""Free memory of a container, from files as the kernel writes them."""

from __future__ import annotations

import pathlib

import pytest
from elasticjob_runtime.training.memory.limits import free_memory

GIB = 1 << 30
MEMINFO = "MemTotal:       32000000 kB\nMemAvailable:   8388608 kB\n"
V2 = {
    "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory.stat": f"anon 100\ninactive_file {GIB}\n",
}
V1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"cache 100\ntotal_inactive_file {GIB}\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 8 * GIB),
        ({"proc/meminfo": MEMINFO, **V2}, 2 * GIB),
        ({"proc/meminfo": MEMINFO, **V2, "sys/fs/cgroup/memory.max": "max\n"}, 8 * GIB),
        ({"proc/meminfo": MEMINFO, **V2, "sys/fs/cgroup/memory.current": f"{9 * GIB}\n"}, 0),
        ({"proc/meminfo": MEMINFO, **V1}, 2 * GIB),
        ({"proc/meminfo": MEMINFO, **V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 << 62}\n"}, 8 * GIB),
        ({"proc/meminfo": "no numbers"}, None),
    ],
    ids=["no files", "a machine", "cgroup v2", "v2 without a limit", "over the limit", "v1", "v1 without a limit", "?"],
)
def test_free_memory_is_that_of_the_container_or_of_the_machine(
    tmp_path: pathlib.Path, files: dict[str, str], free: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == free
