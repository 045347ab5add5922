"""The store of each round, and how its members meet in it.

Every member keeps fresh TCPStores listening on the ports in its member key; the plan says whose is the round's. All
members meet there before torch's agents go on, so that none starts workers for a world that another does not join, and
a member lost meanwhile costs a new plan instead of a timeout. No round ever sees an older one's store.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch.distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from elasticjob_runtime.membership.view import (
    Plan,
)
from elasticjob_runtime.rendezvous.network import PortRange, hold_ports
from elasticjob_runtime.torchrun.member import Member
from elasticjob_runtime.workers.store_host import PortUse

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CALLS: Any = TCPStore
"""torch's own methods. Its type stubs know half of them."""

EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""Where torch's agents count those whose workers have all exited with 0
(torch.distributed.elastic.agent.server.api)."""

STORE_TIMEOUT = datetime.timedelta(seconds=300)
"""torch's default. Ours end by the round's end, long before."""

FOREVER = datetime.timedelta(days=7)

NOTICE = 15.0
"""s within which a lost leader is noticed, even if only by the end of its lease."""

RETRY = 0.5
"""s until a store that could not be reached is tried again: it is as long as torch's client sleeps between its own
tries."""


class RoundOver(Exception):
    """A newer plan, or the end of the job, came first."""


class StoreHost:
    """This member's listening stores. Round n uses the one on ports[n % len(ports)]."""

    def __init__(self, ports: PortRange | None = None) -> None:
        """`ports`: from which its ports are taken; None: any. Raises OSError."""
        self._held = hold_ports(ports)
        self.ports = [holder.getsockname()[1] for holder in self._held]
        self.libuv = True
        try:
            self._listen(0)
        except RuntimeError:
            self.libuv = False  # Debian's torch, and some vendors'
        self._stores = {port: self._listen(port) for port in self.ports}
        self._use = PortUse(self.ports)
        # A client of the agent's store asks for libuv (torch 2.6): without it, the worker of rank 0 opens the workers'
        # store.
        self.shared = self.libuv and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"
        self._worker_ports: list[socket.socket] = [] if self.shared else hold_ports(ports)
        if not self.libuv:
            os.environ.setdefault("USE_LIBUV", "0")

    def prepare(self, round_number: int) -> None:
        """Stores that an earlier round used get fresh. Whoever still waits at one is told so by the broken
        connection."""
        for port in self._use.enter(round_number, leads=True):  # as if it led: one renewal too many costs nothing
            del self._stores[port]
            self._stores[port] = self._listen(port)

    def worker_port(self, plan: Plan) -> int:
        """Where the workers of `plan` find their store, when this member leads."""
        if plan.value.agent_store or not self._worker_ports:
            return plan.value.master_port
        return int(self._worker_ports[plan.round % len(self._worker_ports)].getsockname()[1])

    def _listen(self, port: int) -> TCPStore:
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=self.libuv)


class RoundStore(TCPStore):
    """A client of the round's store, for torch's agent. Nothing in it outlasts the round.

    Every call is made on a thread of its own: torch's would keep signals waiting, and wait for a member that was lost
    for minutes. When the round is over, calls answer with what starts workers that wait for each other until torch's
    agent stops them, at its next look.
    """

    def __init__(self, plan: Plan, member: Member, *, libuv: bool) -> None:
        """Connects. Raises RuntimeError (torch's DistError) where that fails."""
        super().__init__(
            plan.value.master_addr, plan.value.master_port, is_master=False, timeout=STORE_TIMEOUT, use_libuv=libuv
        )
        assert plan.rank is not None
        self._plan = plan
        self.round = plan.round
        self._rank: int = plan.rank.group_rank
        self._member = member
        self._own: bytes | str = b""
        self.finished = False
        """All workers here have exited with 0."""
        self._over = False
        self.worker_port = 0
        self.all_finished = False
        """All agents have come to torch's exit barrier."""

    def meet(self, worker_port: int) -> None:
        """Waits for all members of the plan. `worker_port`: the leader's word on where the workers' store is. May be
        called again."""
        base = f"elasticjob/{self._plan.value.attempt}/"
        _CALLS.set(self, f"{base}arrived/{self._rank}", "1")
        if self._rank == 0:
            _CALLS.wait(self, [f"{base}arrived/{rank}" for rank in range(self._plan.value.size)], FOREVER)
            _CALLS.set(self, f"{base}worker_port", str(worker_port))
        _CALLS.wait(self, [f"{base}worker_port"], FOREVER)
        self.worker_port = int(_CALLS.get(self, f"{base}worker_port"))

    # -- what torch's agent calls

    def set(self, key: str, value: bytes | str) -> None:
        self._own = value
        self._do(lambda: _CALLS.set(self, key, value), None)

    def get(self, key: str) -> bytes:
        return self._do(lambda: _CALLS.get(self, key), self._placeholder())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        own = self._own.encode() if isinstance(self._own, str) else self._own
        return self._do(lambda: _CALLS.multi_get(self, keys), [own for _ in keys])

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        self._do(lambda: _CALLS.multi_set(self, keys, values), None)

    def add(self, key: str, amount: int) -> int:
        if key.startswith(EXIT_BARRIER):
            self.finished = True
            self._member.finish()
        return self._do(lambda: _CALLS.add(self, key, amount), 0)

    def wait(self, keys: Sequence[str], *timeout: datetime.timedelta) -> None:
        if not self.finished:
            self._do(lambda: _CALLS.wait(self, keys, *timeout), None)
            return
        # torch gives the others five minutes. An agent that then left would be missed as a lost member: it waits for
        # the job's end.
        try:
            self._do(lambda: _CALLS.wait(self, keys, FOREVER), None)
            self.all_finished = not self._over
        except RuntimeError as error:
            logger.info("the store of plan %d has gone (%s): waiting for the end of the job", self._plan.round, error)
            self._member.is_over_within(self._plan.round, None)

    def _do(self, call: Callable[[], Any], otherwise: T) -> T:
        if not self._over:
            try:
                result: T = in_background(self._member, self._plan.round, call)
            except RoundOver:
                self._over = True  # the thread may still be in there: this store must not be touched again
            except RuntimeError as error:
                notice = 0.0 if is_timeout(error) else NOTICE  # of a leader that has just gone, so it seems
                self._over = self._member.is_over_within(self._plan.round, notice)
                if not self._over:
                    raise
            else:
                return result
        return otherwise

    def _placeholder(self) -> bytes:
        """The ranks of a world that never forms, since it waits for one more than there are."""
        size = self._plan.value.size + 1
        return json.dumps([self._rank, size, self._rank, size]).encode()


def is_timeout(error: RuntimeError) -> bool:
    """The store answered, but the key did not come in time: there is no lost leader to wait for. An older torch has one
    word for both."""
    kind: type[RuntimeError] | None = getattr(torch.distributed, "DistStoreError", None)
    return kind is not None and isinstance(error, kind)


def enter(member: Member, host: StoreHost, plan: Plan) -> RoundStore:
    """Meets the others of `plan`. Raises RoundOver."""
    host.prepare(plan.round)
    while True:
        try:
            return in_background(member, plan.round, lambda: _connect_and_meet(member, host, plan))
        except RuntimeError as error:
            logger.info("the store of plan %d cannot be reached for now: %s", plan.round, str(error).partition("\n")[0])
        member.is_over_within(plan.round, RETRY)


def _connect_and_meet(member: Member, host: StoreHost, plan: Plan) -> RoundStore:
    store = RoundStore(plan, member, libuv=host.libuv)
    store.meet(host.worker_port(plan))
    return store


def in_background(member: Member, round_number: int, call: Callable[[], T]) -> T:
    """Makes a call that may block on a thread of its own, and leaves it there when the round of `round` is over: then
    RoundOver."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            result.set_exception(error)
        member.wake()

    threading.Thread(target=run, name=f"round-{round_number}", daemon=True).start()
    if not member.wait_while(round_number, result.done):
        raise RoundOver
    return result.result()
