"""The TCPStore of each round, in which the members of its plan meet.

Every member keeps unused TCPStores listening on the ports in its member key; the plan names the one that the round
uses. All members meet there before torch's agents continue. So no agent starts workers for a world that another agent
does not join, and losing a member in the meantime costs a new plan rather than a timeout. No round uses the store of an
earlier one.
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

from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.rendezvous.network import PortRange, hold_ports
from elasticjob_runtime.torchrun.member import TorchrunMember
from elasticjob_runtime.workers.store_host import PortUse

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CALLS: Any = TCPStore
"""torch's own methods; its type stubs declare only half of them."""

EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""The key with which torch's agents count the agents whose workers have all exited with 0
(torch.distributed.elastic.agent.server.api)."""

STORE_TIMEOUT = datetime.timedelta(seconds=300)
"""torch's default. Calls made here end with the round, long before that."""

FOREVER = datetime.timedelta(days=7)

NOTICE = 15.0
"""s within which a lost leader is detected, at the latest when its lease expires."""

RETRY = 0.5
"""s before the next attempt to reach a store: as long as torch's client sleeps between its own attempts."""


class RoundOverError(Exception):
    """A newer plan or the end of the job came first."""


class RoundStores:
    """This member's listening stores. Round n uses the store on ports[n % len(ports)]."""

    def __init__(self, ports: PortRange | None = None) -> None:
        """`ports`: the ports to choose from; None: any. Raises OSError."""
        self._held = hold_ports(ports)
        self.ports = [holder.getsockname()[1] for holder in self._held]
        self.libuv = True
        try:
            self._listen(0)
        except RuntimeError:
            self.libuv = False  # torch without libuv, such as Debian's and some vendors'
        self._stores = {port: self._listen(port) for port in self.ports}
        self._use = PortUse(self.ports)
        # torch 2.6's client of the agent's store requires libuv. Without libuv, rank 0's worker opens the workers'
        # store.
        self.shared = self.libuv and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"
        self._worker_ports: list[socket.socket] = [] if self.shared else hold_ports(ports)
        if not self.libuv:
            os.environ.setdefault("USE_LIBUV", "0")

    def prepare(self, round_number: int) -> None:
        """Replaces stores that an earlier round used. For clients that still wait at one, the connection breaks."""
        for port in self._use.enter(round_number, leads=True):  # as if it led: an extra renewal costs nothing
            del self._stores[port]
            self._stores[port] = self._listen(port)

    def worker_port(self, plan: Plan) -> int:
        """Returns the port of the workers' store for `plan`, if this member leads."""
        if plan.value.agent_store or not self._worker_ports:
            return plan.value.master_port
        return int(self._worker_ports[plan.round % len(self._worker_ports)].getsockname()[1])

    def _listen(self, port: int) -> TCPStore:
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=self.libuv)


class RoundStore(TCPStore):
    """A client of the round's store, for torch's agent. Nothing in the store outlasts the round.

    Every call runs on its own thread, since a direct call would delay signals and wait minutes for a lost member. When
    the round is over, calls return placeholders: torch's agent then starts workers that wait for each other, and stops
    them the next time it polls num_nodes_waiting().
    """

    def __init__(self, plan: Plan, member: TorchrunMember, *, libuv: bool) -> None:
        """Connects. Raises RuntimeError (torch's DistError) if that fails."""
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
        """All workers on this node have exited with 0."""
        self._over = False
        self.worker_port = 0
        self.all_finished = False
        """All agents have reached torch's exit barrier."""

    def meet(self, worker_port: int) -> None:
        """Waits for all members of the plan. `worker_port`: the port of the workers' store, which the leader announces.
        May be called again."""
        base = f"elasticjob/{self._plan.value.attempt}/"
        _CALLS.set(self, f"{base}arrived/{self._rank}", "1")
        if self._rank == 0:
            _CALLS.wait(self, [f"{base}arrived/{rank}" for rank in range(self._plan.value.size)], FOREVER)
            _CALLS.set(self, f"{base}worker_port", str(worker_port))
        _CALLS.wait(self, [f"{base}worker_port"], FOREVER)
        self.worker_port = int(_CALLS.get(self, f"{base}worker_port"))

    # -- called by torch's agent

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
        # torch waits five minutes for the others. If this agent left after that, they would take it for a lost member,
        # so it waits for the end of the job.
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
            except RoundOverError:
                self._over = True  # the thread may still use it: this store must not be called again
            except RuntimeError as error:
                notice = 0.0 if is_timeout(error) else NOTICE  # the leader has probably just gone
                self._over = self._member.is_over_within(self._plan.round, notice)
                if not self._over:
                    raise
            else:
                return result
        return otherwise

    def _placeholder(self) -> bytes:
        """Ranks of a world that never forms, since it has one member more than the plan."""
        size = self._plan.value.size + 1
        return json.dumps([self._rank, size, self._rank, size]).encode()


def is_timeout(error: RuntimeError) -> bool:
    """Whether the store answered but the key did not arrive in time, so the leader is not lost. Older versions of torch
    raise the same error for both."""
    kind: type[RuntimeError] | None = getattr(torch.distributed, "DistStoreError", None)
    return kind is not None and isinstance(error, kind)


def enter(member: TorchrunMember, host: RoundStores, plan: Plan) -> RoundStore:
    """Meets the other members of `plan` and returns its store. Raises RoundOverError."""
    host.prepare(plan.round)
    while True:
        try:
            return in_background(member, plan.round, lambda: _connect_and_meet(member, host, plan))
        except RuntimeError as error:
            logger.info("the store of plan %d cannot be reached for now: %s", plan.round, str(error).partition("\n")[0])
        member.is_over_within(plan.round, RETRY)


def _connect_and_meet(member: TorchrunMember, host: RoundStores, plan: Plan) -> RoundStore:
    store = RoundStore(plan, member, libuv=host.libuv)
    store.meet(host.worker_port(plan))
    return store


def in_background(member: TorchrunMember, round_number: int, call: Callable[[], T]) -> T:
    """Runs `call`, which may block, on a new thread and returns its result. If the round ends first, abandons the
    thread and raises RoundOverError."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            result.set_exception(error)
        member.wake()

    threading.Thread(target=run, name=f"round-{round_number}", daemon=True).start()
    if not member.wait_while(round_number, result.done):
        raise RoundOverError
    return result.result()
