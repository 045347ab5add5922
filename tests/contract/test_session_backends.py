"""What a session needs of a backend: every implementation does the same. gloo runs on CPUs, NCCL needs a GPU for each
process."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from elasticjob_runtime.training.checkpoint.order import NOTHING, Kind, State
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.backend import Backend, Begin, Gloo
from elasticjob_runtime.training.session.forming import form
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.nccl import Nccl
from elasticjob_runtime.training.session.transfer import share
from elasticjob_runtime.training.session.world import ProcessState, World, agree
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests import gpu
from tests.integration.runtime_session.forks import FORKS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

WORLDS = [
    pytest.param("gloo", 1, id="gloo, alone"),
    pytest.param("gloo", 2, id="gloo"),
    pytest.param("nccl", 1, id="nccl, alone", marks=pytest.mark.gpu),
    pytest.param("nccl", 2, id="nccl", marks=pytest.mark.gpu(2)),
]
PAIRS = [item for item in WORLDS if item.values[1] == 2]


@dataclasses.dataclass
class Member:
    """One process of worlds of `size`."""

    backend: Backend
    device: torch.device
    rank: int
    size: int
    port: int
    interruption: Interruption = dataclasses.field(default_factory=Interruption)
    old: list[dist.ProcessGroup] = dataclasses.field(default_factory=list)
    sender: Any = None

    def enter(self, number: int, process_state: ProcessState | None = None) -> list[ProcessState]:
        """Forms a world, after the end of the one before, as the engine does."""
        self.interruption.end()
        self.interruption = Interruption()
        world = World(round=number, attempt="1", step_grace=0.0, environment=self._environment())
        process_state = process_state or ProcessState(state=State(step=number, kind=Kind.LIVE), layout="")
        formed = form(world, process_state, self.interruption, self.backend)
        self.interruption.silent = formed.group.is_silent
        self.interruption.at_end(formed.group.interrupt)
        old = formed.group.install(formed.store)
        self.old += [] if old is None else [old]
        self.sender = formed.group.sender
        return formed.process_states

    def tensor(self, *numbers: float) -> torch.Tensor:
        return torch.tensor(numbers, device=self.device)

    def add_up(self, tensor: torch.Tensor) -> list[float]:
        """The sum over all ranks, as far as an optimizer may use it."""
        self.backend.communicate(begin_sum(tensor), self.interruption).wait()
        self.backend.wait_for_collectives(self.interruption, 0)
        return tensor.tolist()

    def _environment(self) -> dict[str, str]:
        return {
            "RANK": str(self.rank), "WORLD_SIZE": str(self.size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
        }  # fmt: skip


def begin_sum(tensor: torch.Tensor) -> Begin:
    def begin() -> torch.futures.Future[Any]:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        return work.get_future()

    return begin


Scenario = Callable[[Member], Any]


def run(scenario: Scenario, backend: str, size: int) -> list[Any]:
    """What `scenario` returns in each process."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ends = [FORKS.Pipe() for _ in range(size)]
    processes = [
        FORKS.Process(target=_member, args=(scenario, backend, rank, size, store.port, ends[rank][1]))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        results = [end.recv() if end.poll(120) else "no answer" for end, _ in ends]
    finally:
        for process in processes:
            process.kill()
            process.join()
    for result in results:
        assert not isinstance(result, str), f"\n{result}"
    return results


def _member(scenario: Scenario, backend: str, rank: int, size: int, port: int, answer: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.update(gpu.environment(str(rank)))
    device = torch.device(gpu.device(rank) if backend == "nccl" else "cpu")
    try:
        member = Member(Nccl(device) if backend == "nccl" else Gloo(), device, rank, size, port)
        answer.send(scenario(member))
    except BaseException:
        answer.send(traceback.format_exc())
        raise
    threading.Event().wait()  # the others may still need this process's connections


def sums(member: Member) -> list[list[float]]:
    member.enter(1)
    return [member.add_up(member.tensor(member.rank + 1.0, step)) for step in range(3)]


@pytest.mark.parametrize(("backend", "size"), WORLDS)
def test_the_processes_of_a_world_add_up_what_they_have(backend: str, size: int) -> None:
    assert run(sums, backend, size) == [[[float(sum(range(size + 1))), float(step * size)] for step in range(3)]] * size


def worlds_in_a_row(member: Member) -> list[tuple[list[float], list[int]]]:
    found = []
    for number in range(1, 5):
        process_states = member.enter(number)
        found.append((member.add_up(member.tensor(1.0)), [state.state.step for state in process_states]))
    torch_private.release(member.old)
    return found


@pytest.mark.parametrize(("backend", "size"), WORLDS)
def test_worlds_follow_each_other_in_the_same_processes(backend: str, size: int) -> None:
    expected = [([float(size)], [number] * size) for number in range(1, 5)]
    assert run(worlds_in_a_row, backend, size) == [expected] * size


def lost_collective(member: Member) -> tuple[bool, list[float]]:
    member.enter(1)
    member.add_up(member.tensor(1.0))  # NCCL connects some of it at the first collective
    interrupted = False
    if member.rank == 0:
        threading.Timer(0.5, member.interruption.end).start()
        try:
            member.add_up(member.tensor(1.0))  # rank 1 never takes part
        except RuntimeError as error:
            interrupted = torch_private.is_link_error(error)
    else:
        time.sleep(1.0)
    member.enter(2)
    return interrupted, member.add_up(member.tensor(3.0))


@pytest.mark.parametrize(("backend", "size"), PAIRS)
def test_a_collective_that_waits_for_a_lost_process_ends_with_the_world(backend: str, size: int) -> None:
    """And the next world does not notice."""
    assert run(lost_collective, backend, size) == [(True, [6.0]), (False, [6.0])]


def after_the_end(member: Member) -> bool:
    member.enter(1)
    member.add_up(member.tensor(1.0))
    member.interruption.end()
    try:
        member.add_up(member.tensor(1.0))
    except RuntimeError as error:
        return torch_private.is_link_error(error)
    return False


@pytest.mark.parametrize(("backend", "size"), WORLDS)
def test_nothing_is_communicated_in_a_world_that_is_over(backend: str, size: int) -> None:
    assert run(after_the_end, backend, size) == [True] * size


def sent_state(member: Member) -> list[float] | None:
    state = State(step=7, kind=Kind.LIVE) if member.rank == 0 else NOTHING
    own = ProcessState(state=state, layout="")
    agreement = agree(member.enter(1, own), "")
    given = {"weights": member.tensor(*range(5)), "step": 7} if member.rank == 0 else None
    received = share(member.sender, agreement, member.rank, given)
    return None if received is None else [*received["weights"].tolist(), received["step"]]


@pytest.mark.parametrize(("backend", "size"), PAIRS)
def test_a_joiner_receives_the_state_from_wherever_it_is(backend: str, size: int) -> None:
    assert run(sent_state, backend, size) == [None, [0.0, 1.0, 2.0, 3.0, 4.0, 7]]
