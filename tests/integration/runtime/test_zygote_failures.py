"""Workers start even when the zygote hangs or is killed."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.integration.runtime.agents import is_alive
from tests.integration.runtime.launcher_harness import Harness


def test_a_hanging_zygote_never_blocks_the_agent(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's event loop keeps running, and the worker process is spawned after a timeout."""
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 0.5)
    launcher = harness.ready_launcher(preload=[])
    (zygote,) = harness.zygotes()
    harness.worker()
    harness.wait_until_preforked()
    os.kill(zygote, signal.SIGSTOP)
    assert harness.worker()["forked"], "one was preforked"
    results, _ = harness.start()
    assert results == []
    turns: list[int] = []
    harness.event_loop.call_soon(lambda: turns.append(1))
    harness.event_loop.wait(0)
    assert (results, turns) == ([], [1])
    assert launcher.deadline is not None
    pid = harness.run_until(lambda: results)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("learned", [False, True], ids=["the first", "a successor"])
def test_a_stopped_zygote_is_killed_and_replaced(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, learned: bool
) -> None:
    """As soon as a start has waited for it."""
    launcher = harness.ready_launcher(preload=["auto"] if learned else [])
    harness.worker()
    if learned:
        harness.wait_until_learned()
    harness.wait_until_preforked()
    current = launcher._zygotes.current
    assert current is not None
    assert (current.child_pid == 0) is learned
    first_host = launcher.stores.pid
    os.kill(first_host, signal.SIGKILL)
    os.waitpid(first_host, 0)
    harness.run_until(lambda: launcher.stores.listening and launcher.stores.pid != first_host)
    host = launcher.stores.pid
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 0.5)
    os.killpg(current.pid, signal.SIGSTOP)
    assert harness.worker()["forked"], "one was preforked"
    assert not harness.worker()["forked"]
    assert "killing the zygote" in caplog.text
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 60.0)
    harness.run_until(lambda: launcher._zygotes.current is not current, what="another zygote is ready")
    assert harness.worker()["forked"]
    assert launcher.stores.listening
    assert launcher.stores.pid == host, "the store host outlives the zygote that forked it"


def test_a_cancelled_start_starts_nothing(harness: Harness) -> None:
    launcher = harness.ready_launcher(preload=[])
    os.kill(harness.zygotes()[0], signal.SIGSTOP)
    harness.worker()
    results, _ = harness.start()
    launcher.cancel()
    os.kill(harness.zygotes()[0], signal.SIGCONT)
    harness.wait_until_preforked()
    assert results == []
    assert launcher.deadline is None


def test_a_killed_zygote_is_replaced_and_its_preforked_worker_is_used(harness: Harness) -> None:
    launcher = harness.launcher(preload=[])
    harness.wait_until_preforked()
    (old,) = harness.zygotes()
    os.kill(old, signal.SIGKILL)
    harness.run_until(lambda: launcher._zygotes.successor is not None)
    assert harness.worker()["forked"]
    harness.run_until(
        lambda: launcher._zygotes.current is not None and launcher._zygotes.current.ready,
        what="another zygote is ready",
    )
    assert not is_alive(old)
    assert harness.worker()["forked"]


def test_a_pending_worker_is_spawned_as_soon_as_the_zygote_dies(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticjob_runtime.workers.zygote.launcher.FORK_TIMEOUT", 600.0)
    harness.ready_launcher(preload=[])
    os.kill(harness.zygotes()[0], signal.SIGSTOP)
    harness.worker()
    results, _ = harness.start()
    assert results == []
    os.kill(harness.zygotes()[0], signal.SIGKILL)
    (pid,) = harness.run_until(lambda: results)
    assert isinstance(pid, int)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_killed_preforked_worker_loses_no_command(harness: Harness) -> None:
    """The agent does not know yet that it is gone when it sends the command."""
    harness.launcher(preload=[])
    preforked = harness.wait_until_preforked()
    os.kill(preforked[0].pid, signal.SIGKILL)
    os.waitpid(preforked[0].pid, 0)
    assert harness.worker()["forked"]


def test_a_zygote_that_is_killed_again_and_again_is_given_up(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = harness.launcher(preload=[])
    for _ in range(4):
        harness.run_until(
            lambda: launcher.ready and launcher._zygotes.current is not None and launcher._zygotes.current.ready
        )
        assert launcher._zygotes.current is not None
        os.kill(launcher._zygotes.current.pid, signal.SIGKILL)
        harness.run_until(lambda: launcher._zygotes.current is None or not launcher._zygotes.current.ready)
    harness.run_until(lambda: launcher.problem)
    assert "spawning workers" in caplog.text
    assert harness.worker()["forked"] is False


def test_a_killed_store_host_is_replaced(harness: Harness) -> None:
    launcher = harness.launcher(preload=[])
    harness.run_until(lambda: launcher.stores.listening)
    host = launcher.stores.pid
    os.kill(host, signal.SIGKILL)
    harness.run_until(lambda: not launcher.stores.listening)
    harness.run_until(lambda: launcher.stores.listening)
    socket.create_connection(("127.0.0.1", harness.port), 5).close()
    os.waitpid(host, 0)
