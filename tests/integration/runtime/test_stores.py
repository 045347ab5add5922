"""The process that keeps a member's stores listening, with torch's own."""

from __future__ import annotations

import pathlib
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import elasticjob_runtime
import pytest
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.store_host import StoreHost

from hack.cluster.processes import free_ports
from hack.support import eventually

pytestmark = pytest.mark.torch

PROGRAM = """
import socket, sys
from elasticjob_runtime.workers.zygote.server import host_stores
host_stores(socket.socket(fileno=int(sys.argv[1])), {}, 0)
"""


class Bench:
    def __init__(self) -> None:
        self.event_loop = EventLoop()
        self.ports = free_ports(2)
        self.stores = StoreHost(self.event_loop, self.ports, lambda _listening: None)
        ours, theirs = socket.socketpair()
        source = str(pathlib.Path(elasticjob_runtime.__file__).parents[1])
        command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
        environment = {"PYTHONPATH": ":".join([source, *(path for path in sys.path if path)])}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self.stores.attach(ours)

    def waits_until(self, predicate: Callable[[], Any], what: str) -> None:
        def turn() -> Any:
            self.event_loop.wait(0.05)
            return predicate()

        eventually(turn, 60.0, what=what)

    def client(self, round_number: int) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

        return TCPStore("127.0.0.1", self.ports[round_number % 2], is_master=False, use_libuv=self.stores.libuv)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.stores.close()
    bench.process.kill()
    bench.process.wait()
    bench.event_loop.close()


def test_a_member_that_leads_again_with_the_same_port_has_a_fresh_store(bench: Bench) -> None:
    """It had fallen silent, and started no workers of the plans between."""
    bench.waits_until(lambda: bench.stores.listening, "the stores listen")
    bench.stores.enter(1, leads=True)
    bench.client(1).set("arrived", "3")
    bench.stores.enter(3, leads=True)
    bench.waits_until(lambda: not bench.client(3).check(["arrived"]), "the store is fresh")
    assert bench.stores.listening


def test_a_store_that_cannot_listen_again_is_not_claimed(bench: Bench) -> None:
    bench.waits_until(lambda: bench.stores.listening, "the stores listen")
    bench.stores.enter(1, leads=True)
    soft, hard = resource.prlimit(bench.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(bench.process.pid, resource.RLIMIT_NOFILE, (3, hard))
    bench.stores.enter(2, leads=False)
    bench.waits_until(lambda: not bench.stores.listening, "the claim is withdrawn")
    assert bench.process.poll() is None, "the other stores are in use"
    resource.prlimit(bench.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    bench.stores.enter(3, leads=False)
    bench.waits_until(lambda: bench.stores.listening, "it is tried again")
    bench.client(1).set("works", "yes")
