"""Which ports agents and their worker processes listen on, by flags that a firewall's administrator can rely on."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import socket

from tests.integration.runtime.agents import Job, parents

LISTENING = "0A"
LOOPBACK = "0100007F:"
"""127.0.0.1, as /proc/net/tcp writes it."""


def children(pid: int) -> set[int]:
    """This process and all that descend from it."""
    parent_of = parents()
    found, more = {pid}, {pid}
    while more:
        more = {child for child, parent in parent_of.items() if parent in more} - found
        found |= more
    return found


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which this process and its descendants listen, unless only processes on this host can connect."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and not fields[1].startswith(LOOPBACK):
                inodes[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    ports = set()
    for process in children(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            for link in pathlib.Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    ports |= {inodes[name] for name in [str(link.readlink())] if name in inodes}
    return ports


def free_range(size: int) -> int:
    """The first of so many consecutive free ports, outside of what the kernel hands out itself, and of what other
    processes of pytest look for."""
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16 * 1000
    for low in random.sample(range(10000 + part, 10990 + part - size, size), 900 // size):
        with contextlib.ExitStack() as holders:
            try:
                for port in range(low, low + size):
                    holders.enter_context(socket.create_server(("", port)))
            except OSError:
                continue
            return low
    raise AssertionError("no free range")


def test_agents_and_their_stores_listen_within_the_port_range(job: Job) -> None:
    low = free_range(30)
    allowed = set(range(low, low + 30))
    agents = job.start_all("a b", "--port-range", f"{low}-{low + 29}", "--max-restarts", "1", nnodes="2")
    workers = job.wait_for_training(2)
    job.command("a", "raise")  # another round, with another store
    job.wait_for_training(2, after=workers)
    plan = job.plan
    assert plan is not None
    assert plan.master_port in allowed
    members = job.members.values()
    assert {port for member in members for port in (*member.ports, member.peer_port)} <= allowed
    assert len({port for member in members for port in (*member.ports, member.peer_port)}) == 10
    for agent in agents:
        ports = listening_ports(agent.pid)
        assert ports, "the test sees no listening socket"
        assert ports <= allowed


def test_a_master_address_is_said_to_have_no_effect(job: Job) -> None:
    agent = job.start("a", "--master-addr", "10.1.2.3", nnodes="1")
    job.wait_for_training(1)
    assert "--master-addr=10.1.2.3 has no effect" in agent.output
    plan = job.plan
    assert plan is not None
    assert plan.master_addr == job.members["a"].address != "10.1.2.3"
