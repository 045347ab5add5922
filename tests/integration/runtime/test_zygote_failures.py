"""Workers start even when the zygote hangs or is killed."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.integration.runtime.agents import lives
from tests.integration.runtime.launcher_harness import Bench


def test_a_start_never_holds_up_the_agent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zygote that hangs: the agent's loop goes on, and the worker is spawned after a while."""
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 0.5)
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.ready)
    (zygote,) = bench.zygotes()
    bench.worker()
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    os.kill(zygote, signal.SIGSTOP)
    assert bench.worker()["forked"], "there was one parked"
    told, _ = bench.start()
    assert told == []
    turns: list[int] = []
    bench.event_loop.call_soon(lambda: turns.append(1))
    bench.event_loop.wait(0)
    assert (told, turns) == ([], [1])
    assert launcher.deadline is not None
    pid = bench.run_until(lambda: told)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.kill(zygote, signal.SIGCONT)
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 60.0)
    assert bench.worker()["forked"]


def test_starts_that_are_called_off_are_forgotten(bench: Bench) -> None:
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.ready)
    os.kill(bench.zygotes()[0], signal.SIGSTOP)
    bench.worker()
    told, _ = bench.start()
    launcher.cancel()
    os.kill(bench.zygotes()[0], signal.SIGCONT)
    bench.run_until(lambda: launcher._zygotes.current is not None and launcher._zygotes.current.preforked)
    assert told == []
    assert launcher.deadline is None


def test_a_killed_zygote_is_replaced_and_what_it_parked_is_used(bench: Bench) -> None:
    launcher = bench.launcher(preload=[])
    bench.run_until(
        lambda: launcher.ready and launcher._zygotes.current is not None and launcher._zygotes.current.preforked
    )
    (old,) = bench.zygotes()
    os.kill(old, signal.SIGKILL)
    bench.run_until(lambda: launcher._zygotes.successor is not None)
    assert bench.worker()["forked"]
    bench.run_until(
        lambda: launcher._zygotes.current is not None and launcher._zygotes.current.ready, what="another one"
    )
    assert not lives(old)
    assert bench.worker()["forked"]


def test_who_waits_for_a_fork_is_spawned_at_once_when_the_zygote_dies(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 600.0)
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.ready)
    os.kill(bench.zygotes()[0], signal.SIGSTOP)
    bench.worker()
    told, _ = bench.start()
    assert told == []
    os.kill(bench.zygotes()[0], signal.SIGKILL)
    (pid,) = bench.run_until(lambda: told)
    assert isinstance(pid, int)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_parked_worker_that_was_killed_takes_no_command_along(bench: Bench) -> None:
    """The agent does not know yet when it hands the command over."""
    launcher = bench.launcher(preload=[])
    parked = bench.run_until(
        lambda: launcher.ready and launcher._zygotes.current is not None and launcher._zygotes.current.preforked
    )
    os.kill(parked[0].pid, signal.SIGKILL)
    os.waitpid(parked[0].pid, 0)
    assert bench.worker()["forked"]


def test_a_zygote_that_keeps_being_killed_is_given_up(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    launcher = bench.launcher(preload=[])
    for _ in range(4):
        bench.run_until(
            lambda: launcher.ready and launcher._zygotes.current is not None and launcher._zygotes.current.ready
        )
        assert launcher._zygotes.current is not None
        os.kill(launcher._zygotes.current.pid, signal.SIGKILL)
        bench.run_until(lambda: launcher._zygotes.current is None or not launcher._zygotes.current.ready)
    bench.run_until(lambda: launcher.problem)
    assert "spawning workers" in caplog.text
    assert bench.worker()["forked"] is False


def test_a_killed_store_host_is_replaced(bench: Bench) -> None:
    launcher = bench.launcher(preload=[])
    bench.run_until(lambda: launcher.stores.listening)
    host = launcher.stores.pid
    os.kill(host, signal.SIGKILL)
    bench.run_until(lambda: not launcher.stores.listening)
    bench.run_until(lambda: launcher.stores.listening)
    socket.create_connection(("127.0.0.1", bench.port), 5).close()
    os.waitpid(host, 0)
