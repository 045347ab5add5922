"""The agent's side of a zygote."""

from __future__ import annotations

import signal
import socket
import subprocess

import pytest
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.zygote import client
from elasticjob_runtime.workers.zygote.client import Zygote, ZygoteCallbacks
from elasticjob_runtime.workers.zygote.preload import ImportResults

pytestmark = pytest.mark.timeout(30)


def test_a_zygote_that_takes_no_requests_does_not_stop_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STUCK", 0.05)
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(["sleep", "600"])
    callbacks = ZygoteCallbacks(on_ready=lambda _: None, on_preforked=lambda: None, on_exit=lambda *_: None)
    zygote = Zygote(ours, process, EventLoop(), callbacks)
    with theirs:
        for _ in range(10):
            zygote.fork_successor(["x" * 100_000], ImportResults(), callbacks, lambda _: None)
        assert process.wait(10) == -signal.SIGKILL
    zygote.close()
