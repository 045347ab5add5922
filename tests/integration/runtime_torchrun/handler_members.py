"""The handler alone, as torch's agent calls it, on a real etcd.

Each member is a thread of this process, without workers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from elasticjob_runtime.contract import Keys
from elasticjob_runtime.etcd import connect
from elasticjob_runtime.torchrun import round_store
from elasticjob_runtime.torchrun.handler import EtcdRendezvousHandler
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.utils import store as torch_store

from hack.support import eventually

SOON = 60.0


class Member:
    """A handler, and a thread that calls it as torch's agent does."""

    def __init__(self, endpoint: str, run: str, nodes: tuple[int, int], **conf: Any) -> None:
        parameters = RendezvousParameters(
            "etcd-v3", endpoint, run, *nodes, local_addr="127.0.0.1", **{"lease_ttl": 3, **conf}
        )
        handler = get_rendezvous_handler(parameters)
        assert isinstance(handler, EtcdRendezvousHandler)
        self.handler = handler
        self._endpoint = endpoint
        self._name = os.environ.get("ELASTICJOB_MEMBER_ID", "")
        self._thread = ThreadPoolExecutor(1)
        self.round: RendezvousInfo | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handler, name)

    def meet(self) -> Future[RendezvousInfo]:
        """Calls next_rendezvous in the member's thread."""

        def call() -> RendezvousInfo:
            self.round = self.handler.next_rendezvous()
            return self.round

        return self._thread.submit(call)

    def end(self, error: BaseException | None = None) -> Future[bool]:
        """torch's agent ends, with this error: it calls shutdown() from a `finally`."""

        def call() -> bool:
            if error is None:
                return self.handler.shutdown()
            done = list[bool]()
            with contextlib.suppress(type(error)):
                try:
                    raise error
                finally:
                    done.append(self.handler.shutdown())
            return done[0]

        return self._thread.submit(call)

    def assign_ranks(self) -> Future[list[Any]]:
        """torch's exchange of ranks: each agent sends its role and workers to rank 0, which assigns the ranks."""

        def call() -> list[Any]:
            assert self.round is not None
            rank, size = self.round.rank, self.round.world_size
            store: Any = self.round.store
            store.set(f"torchelastic/role_info/{rank}", f"info-{rank}")
            if rank == 0:
                infos = store.multi_get([f"torchelastic/role_info/{i}" for i in range(size)])
                store.multi_set(
                    [f"torchelastic/assigned_ranks/{i}" for i in range(size)], [f"[{i}]" for i in range(size)]
                )
                return [*infos, store.get("torchelastic/assigned_ranks/0")]
            return [store.get(f"torchelastic/assigned_ranks/{rank}")]

        return self._thread.submit(call)

    def finish(self) -> Future[None]:
        """Enters torch's exit barrier, as an agent does whose worker processes all exited with 0."""
        assert self.round is not None
        return self._thread.submit(
            torch_store.barrier, self.round.store, self.round.world_size, round_store.EXIT_BARRIER
        )

    def is_registered(self) -> bool:
        """Whether the member is registered."""
        with contextlib.closing(connect(self._endpoint)) as store:
            return store.get(Keys("/handler", self.handler.get_run_id()).member(self._name)) is not None

    def vanish(self) -> None:
        """As a process that is gone: drops its lease, port and stores."""
        if self.handler._member is not None:
            self.handler._member.close()
        self.handler._stores = None

    def close(self) -> None:
        self.vanish()
        self._thread.shutdown(wait=True, cancel_futures=True)


Make = Callable[..., Member]


def together(*members: Member) -> list[RendezvousInfo]:
    """All members call next_rendezvous; returns what they get from it."""
    return [met.result(SOON) for met in [member.meet() for member in members]]


def wait_for_restart(*members: Member) -> None:
    for member in members:
        eventually(lambda m=member: m.num_nodes_waiting() > 0, SOON)  # type: ignore[misc]


def failed() -> ChildFailedError:
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=3, error_file="<N/A>")
    return ChildFailedError("train.py", {0: failure})
