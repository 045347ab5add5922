"""A worker process that the kernel kills for lack of memory. Needs root and a memory controller."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from hack.cluster.cgroups import hierarchies
from hack.cluster.output import ClusterError
from tests.integration.runtime.agents import SOURCE

HUNGRY = "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))\n"
LIMIT = 192 << 20


@pytest.fixture
def small_cgroup() -> Iterator[pathlib.Path]:
    """A cgroup with LIMIT bytes of memory."""
    try:
        found = [one for one in hierarchies() if one.has("memory")]
        folder = found[0].root / f"elasticjob-test-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
    except (ClusterError, IndexError, OSError) as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    files = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max")
    for file in files:
        if (folder / file).exists():
            with contextlib.suppress(OSError):
                (folder / file).write_text("0" if file == "memory.swap.max" else str(LIMIT))
    if not any((folder / file).exists() for file in files):
        folder.rmdir()
        pytest.skip("this cgroup has no memory controller")
    yield folder
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)


def run(script: str, cgroup: pathlib.Path, tmp_path: pathlib.Path) -> str:
    """What an agent in this cgroup writes about a script that fails."""
    path = tmp_path / "script.py"
    path.write_text(script)
    agent = [
        *(sys.executable, "-S", "-m", "elasticjob_runtime", "--standalone"),
        *("--start-method", "spawn", "--max-restarts", "0"),
    ]
    enter = ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(cgroup)]
    environment = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*enter, *agent, str(path)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_an_out_of_memory_kill_is_reported_as_such(small_cgroup: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = run(HUNGRY, small_cgroup, tmp_path)
    assert "out of memory" in output
    assert "(out of memory?)" not in output, "the agent only guesses"


def test_another_kill_is_not_taken_for_a_lack_of_memory(small_cgroup: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", small_cgroup, tmp_path)
    assert "killed by SIGKILL" in output
    assert "out of memory" not in output
