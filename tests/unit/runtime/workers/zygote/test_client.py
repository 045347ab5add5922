"""The agent's side of a zygote."""

from __future__ import annotations

import signal
import socket
import subprocess
import time

import pytest
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.workers.zygote import client, ipc
from elasticjob_runtime.workers.zygote.client import Zygote, ZygoteCallbacks
from elasticjob_runtime.workers.zygote.expected import ExpectedWorker
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


def test_a_zygote_owes_a_fork_until_it_answers_however_long_the_fork_imports() -> None:
    ours, theirs = socket.socketpair()
    callbacks = ZygoteCallbacks(on_ready=lambda _: None, on_preforked=lambda: None, on_exit=lambda *_: None)
    event_loop = EventLoop()
    zygote = Zygote(ours, None, event_loop, callbacks)
    fork, agents = socket.socketpair()
    seen = [zygote.owes_since]
    with theirs, fork, agents:
        for _ in range(2):
            zygote.pool.fork(ExpectedWorker(local_rank=0, per_rank_imports=["lightning"]))
            seen.append(zygote.owes_since)
        before_the_answer = time.monotonic()
        for _ in range(2):
            ipc.send(theirs, {"forked": "worker"}, [fork.fileno()])
            event_loop.wait(5)
            seen.append(zygote.owes_since)
        assert len(zygote.pool.pending(0)) == 2
    nothing, requested, same, answered, done = seen
    assert nothing is done is None
    assert requested is not None
    assert requested == same
    assert answered is not None
    assert requested < before_the_answer <= answered
    zygote.close()
