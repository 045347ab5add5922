"""Running out of descriptors: nothing fails or spins, and the message says what to do. Each test runs a process of its
own."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from elasticjob_runtime.workers import descriptors


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_agent_raises_its_limit_and_workers_keep_the_users() -> None:
    script = """
import os, resource, subprocess, sys
from pathlib import Path
from elasticjob_runtime.workers import descriptors
from elasticjob_runtime.workers.process import Command, WorkerSpec
from elasticjob_runtime.workers.spawn import spawn
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
assert descriptors.raise_limit() == 4096 == descriptors.raise_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (4096, 4096)
show = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)"
command = Command(program=[sys.executable], arguments=["-c", show])
spec = WorkerSpec(
    command=command, environment=dict(os.environ), local_rank=0, rank=0, error_file=Path("x"), stdout=None, stderr=None
)
pids = []
spawn(spec, pids.append)
os.waitpid(pids[0], 0)
other = subprocess.Popen(["sleep", "60"])
descriptors.restore_limit(other.pid)
print(resource.prlimit(other.pid, resource.RLIMIT_NOFILE))
other.kill()
other.wait()
descriptors.restore_limit(other.pid)  # no error if it is gone
"""
    assert run(script).splitlines() == ["(256, 4096)", "(256, 4096)"]


def test_a_limit_that_is_high_enough_is_kept() -> None:
    script = """
import resource
from elasticjob_runtime.workers import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
print(descriptors.raise_limit(1000), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    assert run(script) == "4096 4096"


def test_a_loop_without_descriptors_rejects_connections_instead_of_spinning() -> None:
    """A readable listener would wake the loop forever, so connections are told and closed."""
    script = """
import os, resource, select, socket
from elasticjob_runtime.workers.descriptors import Acceptor
listener = socket.create_server(("127.0.0.1", 0))
listener.setblocking(False)
acceptor = Acceptor(listener, lambda connection: connection.send(b"hello"))
callers = [socket.create_connection(listener.getsockname()) for _ in range(5)]
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), 4096))
filler = []
try:
    while True: filler.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
assert acceptor.accept() == [] and acceptor.rejected == 5
assert not select.select([listener], [], [], 0)[0], "nothing is left to wake the loop"
assert [caller.recv(100) for caller in callers] == [b"hello"] * 5
assert [caller.recv(100) for caller in callers] == [b""] * 5
for fd in filler: os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
again = socket.create_connection(listener.getsockname())
assert len(acceptor.accept()) == 1, "connections are accepted again once there is room"
acceptor.close()
"""
    run(script)


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.EMFILE, r"raise the hard limit: `ulimit -Hn`"), (errno.ENFILE, "fs.file-max"), (errno.EPIPE, "Broken")],
)
def test_running_out_of_descriptors_says_what_to_raise(number: int, says: str) -> None:
    error = OSError(number, "Broken pipe")
    assert says in descriptors.explain(error)
    assert descriptors.exhausted(error) == (number != errno.EPIPE)


def test_some_descriptors_are_reserved() -> None:
    script = """
import resource
from elasticjob_runtime.workers import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
assert 900 < descriptors.available() < 960, descriptors.available()
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 1024))
assert descriptors.available() == 8
"""
    run(script)
