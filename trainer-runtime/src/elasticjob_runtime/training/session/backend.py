"""What a session needs of a backend of torch.distributed, and gloo, which has all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.links import Links, socket_names
from elasticjob_runtime.training.session.world import World

STORE_TIMEOUT = 5.0
"""s that an operation of the store may take in which processes meet."""
OPERATION_TIMEOUT = 1800.0
"""s that a collective may wait in a formed group. Plans interrupt it long before."""

Begin = Callable[[], "torch.futures.Future[Any]"]
"""Begins a collective."""


def form_timeout(size: int) -> float:
    """s that forming a group of `size` processes may take once all have arrived. Each connects to all others, which
    takes 200 processes on 2 cores 9 s. gloo waits for connections five times that."""
    return 5.0 + 0.03 * size


class Group(Protocol):
    """The process group of one world, as one of its processes has it."""

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Where this process listens for the connections of others."""

    def keep(self, addresses: Sequence[tuple[str, int]], size: int) -> None:
        """Tells its connections, by the addresses of all `size` processes, from others that this one has opened
        meanwhile. Call it once all are connected. Raises OSError if some are missing."""

    @property
    def sender(self) -> Any:
        """What has `send` and `recv` for tensors on the CPU."""

    def install(self, store: PrefixStore) -> Any | None:
        """Makes it the group that the training uses, and returns the one that was. Connects to no other process."""

    def interrupt(self) -> None:
        """Ends whatever waits for other processes in this world, here and in them. Any thread may call this, once."""

    def is_silent(self) -> bool:
        """After `interrupt`: whether no other process's state can arrive in this one's memory any more."""

    def forget(self) -> None:
        """Leaves its connections as they are: they close when nothing refers to it any more."""


class Backend(Protocol):
    """Forms process groups, and knows when their collectives are done."""

    completes_early: bool
    """Whether the future of a collective completes before it is done."""
    votes: bool
    """Whether `wait_for_collectives` is a vote on the step in progress, and has no place between two steps."""

    def connect(self, store: PrefixStore, world: World) -> Group:
        """Connects to all other processes of `world`, which meet in `store`. Blocks, possibly forever, while one of
        them does not connect to this one: for a thread that can be left to itself."""

    def communicate(self, begin: Begin, interruption: Interruption) -> torch.futures.Future[Any]:
        """What `begin` returns. Waiting for it fails if the world is over, at the latest when it ends. A step that uses
        the result also needs `wait_for_collectives`."""

    def begin_step(self) -> None:
        """A step begins."""

    def wait_for_collectives(self, interruption: Interruption, newest: int, *, used: bool = True) -> None:
        """Returns when all collectives that this thread has waited for are known to be done, before the end of the
        world. Raises OverError if that cannot be known. newest: the order of the newest plan of which this process
        knows, see `World`. used: an optimizer is about to use what they have produced."""

    def meet(self, interruption: Interruption, newest: int) -> None:
        """Returns when all replicas have come here, between two steps. Raises OverError if this is not known of all.
        newest: as above."""

    # -- what the ranks of a replica do together. A process that is no part of a replica decides alone.

    def all_of_replica(self, ok: bool) -> bool:
        """Whether all ranks of this replica say so. Collective."""

    def range_in_replica(self, number: int) -> tuple[int, int]:
        """The lowest and the highest number of all its ranks. Collective."""

    def is_due(self, newest: World | None, world: World | None) -> bool:
        """Whether this process leaves `world` for the plan `newest`."""

    def interrupts(self, error: BaseException) -> bool:
        """Whether `error` says that the world is over, and not that the script has failed."""


class OneProcess:
    """The part of a backend for processes that are no part of a replica."""

    votes = False

    def begin_step(self) -> None:
        pass

    def meet(self, interruption: Interruption, newest: int) -> None:
        pass

    def all_of_replica(self, ok: bool) -> bool:
        return ok

    def range_in_replica(self, number: int) -> tuple[int, int]:
        return number, number

    def is_due(self, newest: World | None, world: World | None) -> bool:
        return newest is not world

    def interrupts(self, error: BaseException) -> bool:
        return torch_private.is_link_error(error)


class Gloo(OneProcess):
    completes_early = False

    def connect(self, store: PrefixStore, world: World) -> GlooGroup:
        return GlooGroup(store, world)

    def communicate(self, begin: Begin, interruption: Interruption) -> torch.futures.Future[Any]:
        return interruption.guard(begin())

    def wait_for_collectives(self, interruption: Interruption, newest: int, *, used: bool = True) -> None:
        pass


class GlooGroup:
    nccl: torch_private.Nccl | None = None
    """What connects the GPUs."""

    def __init__(self, store: PrefixStore, world: World) -> None:
        before = socket_names()
        self._world = world
        self.gloo = torch_private.connect(store, world.rank, world.size, form_timeout(world.size))
        links = Links(before)
        # Methods of `links`, and not of this object: who keeps one of them does not keep the group.
        self.interrupt, self.is_silent, self.forget = links.cut, links.are_closed, links.forget
        self.addresses, self.keep = links.addresses, links.keep

    @property
    def sender(self) -> Any:
        return self.gloo

    def install(self, store: PrefixStore) -> Any | None:
        return torch_private.replace_group(self.gloo, store, self._world.rank, self._world.size, OPERATION_TIMEOUT)
