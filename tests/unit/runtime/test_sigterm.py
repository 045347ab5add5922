"""A container's first process ends at SIGTERM before the agent handles it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from elasticjob_runtime import sigterm
from elasticjob_runtime.contract import ExitCode

SCRIPT = """
import os, signal
from elasticjob_runtime.sigterm import end_on_sigterm

{before}
end_on_sigterm({pid})
os.kill(os.getpid(), signal.SIGTERM)
for _ in range(10):
    pass
print("goes on", flush=True)
"""


@pytest.mark.parametrize(
    ("pid", "before", "code", "output"),
    [
        ("1", "", sigterm.TERMINATED, ""),
        ("os.getpid()", "", -signal.SIGTERM, ""),
        ("1", "signal.signal(signal.SIGTERM, lambda *_: None)", 0, "goes on"),
    ],
    ids=["the first process", "another process, which the kernel ends", "a handler that is there already stays"],
)
def test_sigterm_ends_the_first_process_of_a_container(pid: str, before: str, code: int, output: str) -> None:
    script = SCRIPT.format(pid=pid, before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (code, output), done.stderr


def test_the_exit_code_is_the_agents() -> None:
    assert sigterm.TERMINATED == ExitCode.TERMINATED
