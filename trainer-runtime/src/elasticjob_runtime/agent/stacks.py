"""`python -m elasticjob_runtime.agent.stacks`: prints the stacks of this container's worker processes, which go on.

`elasticjob stacks` runs it in each worker pod. It needs no agent: a worker process, and each process that it forked,
has a file open for its stacks, and a handler of a signal that writes them. Other processes would die of that signal,
and get none.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator

from elasticjob_runtime.agent.evidence import LOOK_SECONDS, STACKS_SECONDS, request_stacks, written_stacks

_FILE = re.compile(r"/attempt_\d+/(?P<local_rank>\d+)/stacks$")


def main() -> int:
    found = sorted(worker_processes(), key=lambda process: (int(process[1]), process[0]))
    for pid, local_rank, path in found:
        print(f"Stacks of local rank {local_rank}, process {pid}:\n{stacks(pid, path)}\n", flush=True)  # noqa: T201
    if not found:
        print("no worker process in this container can write its stacks", file=sys.stderr)  # noqa: T201
    return 0 if found else 1


def worker_processes() -> Iterator[tuple[int, str, str]]:
    """(pid, local rank, file for the stacks) of each process of this user that has such a file open."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            files = {os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")}
        except OSError:  # it has ended, or is another user's
            continue
        for path in files:
            if match := _FILE.search(path):
                yield int(name), match["local_rank"], path


def stacks(pid: int, path: str) -> str:
    """One process at a time: those that a worker process has forked write to its file, too."""
    size = request_stacks(pid, path)
    if size is None:
        return "none: it is stopped, waits in the kernel, or handles the signal itself"
    text, before, until = "", "", time.monotonic() + STACKS_SECONDS
    while time.monotonic() < until and (not text or text != before):
        time.sleep(LOOK_SECONDS)
        text, before = written_stacks(path, size), text
    return text.strip() or "none within 2 s"


if __name__ == "__main__":
    raise SystemExit(main())
