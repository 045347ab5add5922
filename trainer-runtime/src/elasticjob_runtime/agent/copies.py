"""Copies of snapshots at other agents: each agent gives those of its worker processes to its neighbour, and holds those
of another member.

Only sharded training asks for that (`Shards.keep`): otherwise all processes have the same state. Copies are sent by a
thread, one after the other, and received by a thread each. The event loop only starts them and takes their results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
import queue
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

from elasticjob_runtime.agent.snapshots import free
from elasticjob_runtime.contract import Env, Fence, Neighbour, SecretValue
from elasticjob_runtime.event_loop import EventLoop, start_thread
from elasticjob_runtime.rendezvous import copy_stream
from elasticjob_runtime.rendezvous.peer_protocol import NONCE_SIZE, Client, NotAuthenticError, Purpose, Session
from elasticjob_runtime.training.memory import limits, policy
from elasticjob_runtime.training.memory.buffers import Buffer, NoMemoryError

logger = logging.getLogger(__name__)

RATE = 256.0
"""MiB/s at which an agent sends copies, at most: a fifth of what a network of 10 Gbit/s carries."""
TIMEOUT = 10.0
"""s without any progress after which a copy is given up."""
MOST = 64
"""Copies that an agent holds."""
MOST_AT_ONCE = 16
"""Copies that it receives at the same time."""

Done = Callable[[bool], None]


def copy_rate(environment: Mapping[str, str]) -> float:
    """MiB/s, from ELASTICJOB_COPY_RATE; the default if that is not a number."""
    try:
        return max(0.0, float(environment.get(Env.COPY_RATE, RATE)))
    except ValueError:
        logger.warning(
            "%s=%s is not a number of MiB per second; using %g", Env.COPY_RATE, environment[Env.COPY_RATE], RATE
        )
        return RATE


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Whose snapshot it is, and of what state."""

    member: str
    local_rank: int
    purpose: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    origin: Origin
    fence: Fence
    step: int


def outdated(held: Iterable[Copy], arrived: Copy) -> list[Copy]:
    """Which copies `arrived` makes useless. Pure.

    The previous one of the same origin. Also those of earlier worker groups, once `arrived` is the second one of its
    group: a group takes its second snapshot only when the first is complete everywhere.
    """
    others = [copy for copy in held if copy.origin.purpose == arrived.origin.purpose]
    second = any(other.origin == arrived.origin and other.fence == arrived.fence for other in others)
    return [other for other in others if other.origin == arrived.origin or (second and other.fence < arrived.fence)]


def receivers_of(neighbours: Sequence[Neighbour], address: str) -> list[Neighbour]:
    """Who may get the copies of the member at `address`, the best first: in the order of ranks, but on another machine
    if possible. Pure."""
    reachable = [neighbour for neighbour in neighbours if neighbour.peer_port]
    return sorted(reachable, key=lambda neighbour: neighbour.address == address)


@dataclasses.dataclass(frozen=True, slots=True)
class _Order:
    """A snapshot to send. Its sender closes the buffer."""

    buffer: Buffer
    origin: Origin
    receivers: Sequence[Neighbour]
    """One of them gets it: the first one that takes it."""
    secret: SecretValue
    done: Done


class PeerCopies:
    """Use it on the event loop only."""

    def __init__(self, event_loop: EventLoop, member: str, address: str, *, rate: float = RATE) -> None:
        """rate: MiB/s; 0: this agent sends no copies."""
        self._event_loop = event_loop
        self._member, self._address = member, address
        self._rate = rate * (1 << 20)
        self._secret: SecretValue | None = None
        self._receivers: list[Neighbour] = []
        self.hurries = False
        """Whether the processes here wait for their copies, and not train: then there is no limit to the rate."""
        self.may_stay = True
        """Whether this member may be in the next plan. If not, it takes no copies: they would be lost with it."""
        self.will_stay = False
        """Whether it is in the next plan, as far as it knows: then what only it has in memory is not lost."""
        self._held: dict[Copy, Buffer] = {}
        self._receiving = 0
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._sends = False
        """The sending thread runs."""
        self._warned = False

    def use_secret(self, secret: SecretValue) -> None:
        self._secret = secret

    def follow(self, neighbours: Sequence[Neighbour]) -> None:
        """A plan has come, with these neighbours."""
        self._receivers = receivers_of(neighbours, self._address)

    def send(
        self, local_rank: int, purpose: bytes, step: int, fds: Sequence[int], done: Done, *, last: bool = False
    ) -> None:
        """Copies the snapshot of `step`, which one of `fds` has, to the neighbour, and calls `done` with whether it is
        there now. While it is sent, nothing must write to that memory.

        last: its process stops for a planned change. Then `done` hears whether the snapshot survives that, and the
        neighbour after the first one gets the copy if that leaves, too.
        """
        buffer = _find(fds, purpose, step)
        if last and buffer is not None and self.will_stay:
            done(True)
            done = lambda _copied: None  # noqa: E731 it has been told
        if buffer is None or self._secret is None or not self._receivers or not self._rate:
            if buffer is not None:
                buffer.close()
            done(False)
            return
        self._sends = self._sends or start_thread(self._send_all, "send-copies")
        if not self._sends:
            buffer.close()
            done(False)
            return
        origin = Origin(member=self._member, local_rank=local_rank, purpose=purpose)
        receivers = self._receivers if last else self._receivers[:1]
        self._orders.put(_Order(buffer, origin, receivers, self._secret, done))

    def serve(self, connection: socket.socket, session: Session) -> None:
        """Receives a copy on this connection."""
        if self._receiving >= MOST_AT_ONCE or not self.may_stay:
            connection.close()
            return
        if start_thread(functools.partial(self._receive, connection, session), "receive-copy"):
            self._receiving += 1
        else:
            connection.close()

    def share(self, local_rank: int, count: int) -> list[int]:
        """Descriptors of the copies that the process `local_rank` of `count` reads. Each is read by one process; other
        members may have more processes than this one."""
        return [buffer.fd for copy, buffer in self._held.items() if copy.origin.local_rank % count == local_rank]

    def close(self) -> None:
        self._orders.put(None)
        for buffer in self._held.values():
            buffer.close()
        self._held.clear()

    # -- the sending thread

    def _send_all(self) -> None:
        while (order := self._orders.get()) is not None:
            failure: str | None = None
            for peer in order.receivers:
                failure = self._try_to_send(order, peer)
                if not failure:
                    break
            order.buffer.close()
            with contextlib.suppress(OSError):  # the agent has ended
                self._event_loop.call_soon(lambda order=order, failure=failure: self._sent(order, failure))  # type: ignore[misc]

    def _try_to_send(self, order: _Order, peer: Neighbour) -> str | None:
        """Returns why it was not possible; None: it was."""
        try:
            self._send(order, peer)
        except (OSError, NotAuthenticError) as error:
            why = str(error) or "it is not an agent of this run that takes copies"
            return f"{peer.name} has no copy of this member's snapshots: {why}"
        return None

    def _send(self, order: _Order, peer: Neighbour) -> None:
        header = order.buffer.header()
        if header is None:
            raise OSError("the snapshot was replaced")
        client = Client(order.secret, peer.incarnation, Purpose.COPY, os.urandom(NONCE_SIZE))
        with socket.create_connection((peer.address, peer.peer_port), TIMEOUT) as connection:
            connection.sendall(client.hello)
            while not client.receive(data := connection.recv(1024)):
                if not data:
                    raise NotAuthenticError
            connection.sendall(client.reply)
            about = {
                "member": order.origin.member,
                "local_rank": order.origin.local_rank,
                "purpose": order.origin.purpose.hex(),
                "fence": str(header.fence),
                "step": header.step,
                "size": header.layout.size,
            }
            with memoryview(order.buffer.memory) as memory, memory[: header.layout.size] as data_to_send:
                copy_stream.send(connection, client.message_key(), about, data_to_send, rate=self._rate_now)

    def _rate_now(self) -> float:
        return math.inf if self.hurries else self._rate

    def _sent(self, order: _Order, failure: str | None) -> None:
        if failure and not self._warned:
            self._warned = True
            logger.warning("if this machine is lost, training continues from storage: %s", failure)
        if not failure:
            self._warned = False
        order.done(not failure)

    # -- receiving threads

    def _receive(self, connection: socket.socket, session: Session) -> None:
        found: tuple[Copy, Buffer] | None = None
        failure = ""
        try:
            with connection:
                connection.setblocking(True)
                connection.settimeout(TIMEOUT)
                found = _take(connection, session)
        except (OSError, ValueError, KeyError, TypeError, NoMemoryError, NotAuthenticError) as error:
            failure = repr(error)
        with contextlib.suppress(OSError):  # the agent has ended
            self._event_loop.call_soon(lambda: self._received(found, failure))

    def _received(self, found: tuple[Copy, Buffer] | None, failure: str) -> None:
        self._receiving -= 1
        if found is None:
            logger.info("a copy of another member's snapshot was not received: %s", failure)
            return
        copy, buffer = found
        useless = [self._held.pop(key) for key in outdated(self._held, copy)]
        if len(self._held) >= MOST:
            useless.append(self._held.pop(next(iter(self._held))))
        self._held[copy] = buffer
        if useless:
            free(lambda: _close_all(useless))


def _close_all(buffers: list[Buffer]) -> None:
    while buffers:
        buffers.pop().close()


def _take(connection: socket.socket, session: Session) -> tuple[Copy, Buffer]:
    """Raises OSError, ValueError, KeyError, TypeError, NoMemoryError, NotAuthenticError."""
    key = session.message_key()
    about = copy_stream.receive_about(connection, key)
    origin = Origin(
        member=str(about["member"]), local_rank=int(about["local_rank"]), purpose=bytes.fromhex(about["purpose"])
    )
    size = int(about["size"])
    if not policy.fits(size, limits.free_memory()):
        raise NoMemoryError(f"it has {size >> 20} MiB, more than half of the memory that is free")
    buffer = Buffer.create()
    try:
        buffer.reserve(size)
        with memoryview(buffer.memory) as memory, memory[:size] as target:
            copy_stream.receive_data(connection, key, target)
        header = buffer.header()
        if header is None or header.purpose != origin.purpose:
            raise ValueError("it is not a snapshot")
        copy_stream.acknowledge(connection, key)
    except BaseException:
        buffer.close()
        raise
    return Copy(origin, header.fence, header.step), buffer


def _find(fds: Sequence[int], purpose: bytes, step: int) -> Buffer | None:
    """The memory that has this snapshot. The caller closes it."""
    for fd in fds:
        with contextlib.suppress(OSError, ValueError):
            buffer = Buffer(os.dup(fd))
            header = buffer.header()
            if header is not None and (header.purpose, header.step) == (purpose, step):
                return buffer
            buffer.close()
    return None
