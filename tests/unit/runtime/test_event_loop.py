"""The agent's loop."""

from __future__ import annotations

import os
import socket

from elasticjob_runtime.event_loop import EventLoop


def test_a_reused_descriptor_calls_only_its_new_owner() -> None:
    """As when a worker ends: its pipes are closed, and the connection that is accepted next gets the number of one of
    them."""
    event_loop, called = EventLoop(), []
    ready = [socket.socketpair() for _ in range(2)]
    quiet, its_end = socket.socketpair()
    replaced: list[int] = []

    def replace(mine: int, other: int) -> None:
        called.append("old")
        if not replaced:
            number = ready[other][0].fileno()
            event_loop.remove_reader(number)
            os.dup2(quiet.fileno(), number)
            event_loop.add_reader(number, lambda: called.append("new"))
            replaced.append(number)
        event_loop.remove_reader(ready[mine][0].fileno())

    for mine, other in ((0, 1), (1, 0)):
        event_loop.add_reader(ready[mine][0].fileno(), lambda mine=mine, other=other: replace(mine, other))  # type: ignore[misc]
        ready[mine][1].send(b"x")
    event_loop.wait(0)
    assert called == ["old"], "the file descriptor may belong to another callback by now"
    its_end.send(b"x")
    event_loop.wait(0)
    assert called == ["old", "new"]
    for one in (*ready[0], *ready[1], quiet, its_end):
        one.close()
    event_loop.close()
