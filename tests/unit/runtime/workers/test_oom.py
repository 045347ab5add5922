"""Where the kernel counts processes killed for lack of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from elasticjob_runtime.workers.oom import OomKills, counting_file, kills

V1 = "5:devices:/kubepods/pod1/c1\n4:memory:/kubepods/pod1/c1\n0::/\n"
V1_MOUNT = "30 24 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
V1_OWN_PART = "30 24 0:26 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro,nosuid master:9 - cgroup cgroup rw,memory\n"
V1_OTHER = "29 24 0:25 / /sys/fs/cgroup/cpu rw shared:8 - cgroup cgroup rw,cpu\n"
V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"

FILES = {
    "v1, the host's tree": (V1, V1_OTHER + V1_MOUNT, "/sys/fs/cgroup/memory/kubepods/pod1/c1/memory.oom_control"),
    "v1, a container's subtree": (V1, V1_OWN_PART, "/sys/fs/cgroup/memory/memory.oom_control"),
    "v1, in its own namespace": ("4:memory:/\n", V1_MOUNT, "/sys/fs/cgroup/memory/memory.oom_control"),
    "v1, the mount of another subtree": (
        V1,
        V1_OWN_PART.replace("pod1/c1", "pod2"),
        "/sys/fs/cgroup/memory/memory.oom_control",
    ),
    "v1, several controllers together": ("4:cpu,memory:/a\n", V1_MOUNT, "/sys/fs/cgroup/memory/a/memory.oom_control"),
    "v1, not mounted": (V1, V1_OTHER, None),
    "v2": ("0::/\n", V2_MOUNT, "/sys/fs/cgroup/memory.events"),
    "v2, not in a namespace": (
        "0::/system.slice/x.service\n",
        V2_MOUNT,
        "/sys/fs/cgroup/system.slice/x.service/memory.events",
    ),
    "v2, outside the namespace": ("0::/../other\n", V2_MOUNT, "/sys/fs/cgroup/memory.events"),
    "none": ("", "", None),
}

COUNTS = {
    "v2": ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n", 2),
    "v1": ("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", 7),
    "v1 of an old kernel": ("oom_kill_disable 0\nunder_oom 0\n", None),
    "invalid": ("oom_kill many\n", None),
    "empty": ("", None),
}


@pytest.mark.parametrize("name", FILES)
def test_the_cgroup_file_with_the_count_is_found(name: str) -> None:
    cgroups, mounts, file = FILES[name]
    assert counting_file(cgroups, mounts) == (Path(file) if file else None)


@pytest.mark.parametrize("name", COUNTS)
def test_the_number_of_kills_is_read(name: str) -> None:
    text, count = COUNTS[name]
    assert kills(text) == count


def test_only_kills_since_the_start_count(tmp_path: Path) -> None:
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 1\n")
    oom = OomKills(file)
    assert oom.happened() is False
    file.write_text("oom_kill 2\n")
    assert oom.happened() is True
    oom.reset()
    assert oom.happened() is False
    file.unlink()
    assert oom.happened() is None, "a missing file says nothing"
