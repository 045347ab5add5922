"""What the tests of saved states share."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import threading
from collections.abc import Iterator

import pytest
from elasticjob_runtime.agent.worker_server import WorkerServer
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.training.checkpoint import directory


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process remembers about its training ends with each test."""
    monkeypatch.setattr(directory._process, "choice", 0)


@pytest.fixture
def tight_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


@contextlib.contextmanager
def serving_agent() -> Iterator[str]:
    """The socket of an agent: the real server, in a thread."""
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
