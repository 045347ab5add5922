"""Agents' sockets for worker processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from elasticjob_runtime.agent.worker_server import WorkerServer
from elasticjob_runtime.event_loop import EventLoop


@pytest.fixture
def agents() -> Iterator[tuple[str, str, str]]:
    """The sockets of three agents."""
    with _agent() as first, _agent() as second, _agent() as third:
        yield first, second, third


@contextlib.contextmanager
def _agent() -> Iterator[str]:
    """The real server in a thread."""
    event_loop = EventLoop()
    server = WorkerServer(event_loop, lambda _progress: None)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            event_loop.wait(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.path
    stop.set()
    thread.join()
    server.close()
    event_loop.close()
