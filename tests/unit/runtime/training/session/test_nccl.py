"""What sessions do with NCCL, as far as it shows without a GPU. The rest is in tests that need one."""

from __future__ import annotations

import os
import threading

import pytest

pytest.importorskip("torch")

import torch
from elasticjob_runtime.training.session.interruption import Interruption, OverError
from elasticjob_runtime.training.session.nccl import Nccl

pytestmark = pytest.mark.timeout(30)


class Communicator:
    """Records that it was aborted."""

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()


@pytest.fixture
def backend() -> Nccl:
    return Nccl(torch.device("cuda", 0))


def test_a_communicator_is_not_freed_while_a_collective_is_being_queued(backend: Nccl) -> None:
    communicator, queueing, go_on = Communicator(), threading.Event(), threading.Event()

    def begin() -> torch.futures.Future[None]:
        queueing.set()
        go_on.wait()
        return torch.futures.Future()

    thread = threading.Thread(target=backend.communicate, args=(begin, Interruption()))
    thread.start()
    queueing.wait()
    backend.abort(communicator)
    assert not communicator.aborted.wait(0.2)
    go_on.set()
    assert communicator.aborted.wait(10)
    thread.join()


def test_no_collective_is_queued_once_the_world_is_over(backend: Nccl) -> None:
    interruption = Interruption()
    interruption.end()
    with pytest.raises(OverError):
        backend.communicate(lambda: pytest.fail("queued"), interruption)


def test_the_thread_that_hears_of_plans_does_not_wait_for_an_abort(backend: Nccl) -> None:
    class Slow(Communicator):
        def abort(self) -> None:
            go_on.wait()
            super().abort()

    communicator, go_on = Slow(), threading.Event()
    backend.abort(communicator)
    assert not communicator.aborted.is_set()
    go_on.set()
    assert communicator.aborted.wait(10)


def test_torch_ends_no_process_when_a_peer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents set 1, as torchrun does: torch's watchdog would end the process."""
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    Nccl(torch.device("cuda", 0))
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
