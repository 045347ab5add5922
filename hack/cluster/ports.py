"""Ports for servers that tests start."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import socket

TEST_PORTS = range(61_000, 65_000)
"""Above the kernel's ip_local_port_range."""
PARTS = 8
"""Of these ports; one for each process of pytest-xdist."""
REMEMBERED = 200
"""Ports of a process that are not given out again: the server of one may not listen yet, or start again."""

_draw = random.SystemRandom()
"""A test may seed the usual one, and all processes alike."""
_given: collections.deque[int] = collections.deque(maxlen=REMEMBERED)


def ports_of(worker: str) -> range:
    """The ports for this process of pytest-xdist ("gw0", "gw1", ...; "": there is only one). Pure."""
    if not worker:
        return TEST_PORTS
    size = len(TEST_PORTS) // PARTS
    first = int(worker.removeprefix("gw")) % PARTS * size
    return TEST_PORTS[first : first + size]


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now.

    Another process may take one before it is used, but not by chance: they are outside the range from which the kernel
    takes ports for connections, and tests that run at the same time get others.
    """
    ports = ports_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
    found: list[int] = []
    while len(found) < count:
        port = _draw.choice(ports)
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.socket() as each:
            each.bind(("127.0.0.1", port))
            found.append(port)
            _given.append(port)
    return found
