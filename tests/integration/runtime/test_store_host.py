"""The process that keeps a member's stores listening, with torch's own TCPStore."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.store_host import StoreHost

from hack.cluster.ports import free_ports
from hack.support import eventually
from tests.integration.runtime.agents import SOURCE

pytestmark = pytest.mark.torch

PROGRAM = """
import socket, sys
from elasticjob_runtime.workers.zygote.server import host_stores
host_stores(socket.socket(fileno=int(sys.argv[1])), {}, 0)
"""


class Harness:
    """A store host as a process, and the agent's side of it."""

    def __init__(self) -> None:
        self.event_loop = EventLoop()
        self.ports = free_ports(2)
        self.stores = StoreHost(self.event_loop, self.ports, lambda _listening: None)
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
        environment = {"PYTHONPATH": ":".join([str(SOURCE), *(path for path in sys.path if path)])}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self.stores.attach(ours)

    def wait_until(self, predicate: Callable[[], Any], what: str) -> None:
        def turn() -> Any:
            self.event_loop.wait(0.05)
            return predicate()

        eventually(turn, 60.0, what=what)

    def client(self, round_number: int) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

        return TCPStore("127.0.0.1", self.ports[round_number % 2], is_master=False, use_libuv=self.stores.libuv)


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.stores.close()
    harness.process.kill()
    harness.process.wait()
    harness.event_loop.close()


def test_a_member_that_leads_again_on_the_same_port_opens_a_fresh_store(harness: Harness) -> None:
    """It was silent, and started no worker processes in the rounds between."""
    harness.wait_until(lambda: harness.stores.listening, "the stores listen")
    harness.stores.enter(1, leads=True)
    harness.client(1).set("arrived", "3")
    harness.stores.enter(3, leads=True)
    harness.wait_until(lambda: not harness.client(3).check(["arrived"]), "the store is fresh")
    assert harness.stores.listening


def test_a_store_that_cannot_listen_is_not_announced(harness: Harness) -> None:
    harness.wait_until(lambda: harness.stores.listening, "the stores listen")
    harness.stores.enter(1, leads=True)
    soft, hard = resource.prlimit(harness.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(harness.process.pid, resource.RLIMIT_NOFILE, (3, hard))
    harness.stores.enter(2, leads=False)
    harness.wait_until(lambda: not harness.stores.listening, "the announcement is withdrawn")
    assert harness.process.poll() is None, "the process keeps its other stores"
    resource.prlimit(harness.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    harness.stores.enter(3, leads=False)
    harness.wait_until(lambda: harness.stores.listening, "the stores listen again")
    harness.client(1).set("works", "yes")
