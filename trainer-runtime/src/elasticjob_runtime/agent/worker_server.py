"""The socket on which workers talk to their agent: one Unix socket (SOCK_SEQPACKET) per agent, with JSON messages.

A worker reports progress and the phases of its start, hands over snapshots and fetches those of its predecessor. One
that can continue in place says hello and receives plans. One that saves when asked is asked before a planned change.
The messages are described in elasticjob_runtime.training.channel and link.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticjob_runtime.agent.copies import PeerCopies
from elasticjob_runtime.agent.rate_meter import RateMeter
from elasticjob_runtime.agent.snapshots import HeldSnapshots, Snapshot
from elasticjob_runtime.contract import ProgressValue
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.telemetry.transitions import WorkerReport
from elasticjob_runtime.training.link import MAX_FDS
from elasticjob_runtime.workers import descriptors
from elasticjob_runtime.workers.state_machine import PlanReport

logger = logging.getLogger(__name__)

READS_AT_ONCE = 128
"""Messages read from one worker before the event loop runs again: a worker that reports without pause must not delay
heartbeats."""

MAX_UNREAD = 2000
"""The maximum number of messages read from one connection after its worker has ended; the kernel holds a few
hundred."""


class WorkerServer:
    """Listens at `path`. `on_progress` receives the progress of rank 0, `on_report` the reports of all ranks."""

    def __init__(
        self,
        event_loop: EventLoop,
        on_progress: Callable[[ProgressValue], None],
        on_report: Callable[[WorkerReport], None] = lambda _report: None,
        *,
        on_saves: Callable[[int, int], None] = lambda _rank, _round: None,
        on_saved: Callable[[int, int], None] = lambda _rank, _round: None,
        on_hello: Callable[[int], None] = lambda _local_rank: None,
        on_saves_at_end: Callable[[int], None] = lambda _local_rank: None,
        on_plan_report: Callable[[PlanReport], None] = lambda _report: None,
        copies: PeerCopies | None = None,
        folder: str | None = None,
    ) -> None:
        """`on_saves`: the worker of this rank and round saves when asked. `on_saved`: it has nothing left to save.
        `on_hello`: called with the local rank of a worker that can continue under another plan; `on_saves_at_end`: of
        one that saves before its last world ends; `on_plan_report`: with how far it is. `copies`: None: snapshots are
        not copied to other agents. `folder`: the folder in which to create the socket's own folder; None: the system's
        folder for temporary files."""
        self._event_loop = event_loop
        self._on_progress = on_progress
        self._on_report = on_report
        self._on_saves = on_saves
        self._on_saved = on_saved
        self._on_hello = on_hello
        self._on_saves_at_end = on_saves_at_end
        self._on_plan_report = on_plan_report
        self._copies = copies
        self._in_place: dict[int, int] = {}
        """Local rank -> connection of the worker that can continue under another plan."""
        self._directory = tempfile.mkdtemp(prefix="socket-", dir=folder)
        self.path = os.path.join(self._directory, "agent.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._acceptor = descriptors.Acceptor(self._listener)
        self._connections: dict[int, socket.socket] = {}
        self._save_on_request: dict[int, int] = {}
        """Rank -> connection of the worker that saves when asked."""
        self._reported_invalid: set[int] = set()
        """Connections that sent an invalid message; a warning is logged once for each."""
        self._snapshots = HeldSnapshots()
        self._meter = RateMeter()
        event_loop.add_reader(self._listener.fileno(), self._accept)

    def ask_to_save(self, rank: int, seconds: float) -> None:
        """Asks this worker to save; it is killed after `seconds`."""
        if (fd := self._save_on_request.get(rank)) is not None:
            stays = self._copies is not None and self._copies.will_stay
            _send(self._connections[fd], {"type": "save", "seconds": seconds, "stays": stays})

    def send_to(self, local_rank: int, message: Mapping[str, Any]) -> None:
        """Sends a message to the worker of `local_rank` that can continue under another plan."""
        fd = self._in_place.get(local_rank)
        if fd is not None:
            _send(self._connections[fd], message)

    def drain(self) -> None:
        """Reads all unread messages of the workers."""
        for fd in list(self._connections):
            self._read(fd, MAX_UNREAD)

    def close(self) -> None:
        for fd in list(self._connections):
            self._drop(fd)
        self._snapshots.close()
        self._event_loop.remove_reader(self._listener.fileno())
        self._acceptor.close()
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _accept(self) -> None:
        for connection in self._acceptor.accept():
            fd = connection.fileno()
            self._connections[fd] = connection
            self._event_loop.add_reader(fd, functools.partial(self._read, fd))

    def _read(self, fd: int, most: int = READS_AT_ONCE) -> None:
        for _ in range(most):
            if fd not in self._connections:
                return
            fds: list[int] = []
            try:
                data, fds, _, _ = socket.recv_fds(self._connections[fd], 65536, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            kept = bool(data) and self._take(fd, data, tuple(fds))
            for received in fds if not kept else ():
                os.close(received)
            if not data:
                self._drop(fd)

    def _read_others(self, fd: int) -> None:
        """The worker that fetches may have a predecessor whose last snapshot is still unread."""
        for other in [connection for connection in self._connections if connection != fd]:
            self._read(other, MAX_UNREAD)

    def _take(self, fd: int, data: bytes, fds: tuple[int, ...]) -> bool:
        """Handles one message. Returns whether the descriptors are kept."""
        try:
            message = json.loads(data)
            kind = message.get("type")
            if kind == "snapshot" and fds:
                offered = Snapshot(round=int(message["round"]), step=int(message["step"]), fds=fds)
                return self._snapshots.keep(int(message["local_rank"]), offered)
            if kind in ("fetch", "copy"):
                serve = self._hand_out if kind == "fetch" else self._copy
                serve(fd, int(message["local_rank"]), message)
            if kind == "hello":
                self._in_place[int(message["local_rank"])] = fd
                self._on_hello(int(message["local_rank"]))
            if kind in ("saves", "saved", "saves-at-end"):
                self._take_save(fd, kind, message)
            if kind == "plan-state":
                self._on_plan_report(_plan_report(message))
            if kind == "progress" and int(message.get("rank", 0)) == 0:
                self._on_progress(self._progress(message))
            if kind in ("progress", "phase"):
                self._on_report(_report(message))
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            if fd not in self._reported_invalid:
                self._reported_invalid.add(fd)
                logger.warning("a worker sent a report that cannot be read, perhaps not the last one: %r", error)
        return False

    def _take_save(self, fd: int, kind: str, message: dict[str, Any]) -> None:
        if kind == "saves-at-end":
            self._on_saves_at_end(int(message["local_rank"]))
            return
        rank, round_number = int(message["rank"]), int(message["round"])
        if kind == "saved":
            self._on_saved(rank, round_number)
        else:
            self._save_on_request[rank] = fd
            self._on_saves(rank, round_number)

    def _copy(self, fd: int, local_rank: int, message: dict[str, Any]) -> None:
        """Copies a snapshot to the neighbour, and tells the worker when that is over."""
        step = int(message["step"])
        purpose = bytes.fromhex(message["purpose"])
        connection = self._connections[fd]

        def done(copied: bool) -> None:
            if self._connections.get(fd) is connection:
                _send(connection, {"type": "copied", "step": step, "purpose": message["purpose"], "copied": copied})

        snapshot = self._snapshots.of(local_rank)
        if self._copies is None or snapshot is None:
            done(False)
        else:
            self._copies.send(local_rank, purpose, step, snapshot.fds, done, last=bool(message.get("last")))

    def _hand_out(self, fd: int, local_rank: int, message: dict[str, Any]) -> None:
        self._read_others(fd)
        snapshot = self._snapshots.of(local_rank)
        if count := int(message.get("copies_of", 0)):
            held = self._copies.share(local_rank, count)[:MAX_FDS] if self._copies is not None else []
            snapshot = Snapshot(round=0, step=0, fds=tuple(held)) if held else None
        if snapshot is None:
            _send(self._connections[fd], {"type": "snapshot", "step": None})
        else:
            _send(
                self._connections[fd],
                {"type": "snapshot", "round": snapshot.round, "step": snapshot.step},
                snapshot.fds,
            )

    def _progress(self, message: dict[str, Any]) -> ProgressValue:
        at = float(message.get("time", 0.0))
        step = int(message["step"])
        checkpoint = message.get("last_checkpoint_step")
        return ProgressValue(
            step=step,
            round=int(message.get("round", 0)),
            steps_per_second=round(self._meter.rate(step, at), 3),
            last_checkpoint_step=None if checkpoint is None else int(checkpoint),
            metrics={str(name): float(value) for name, value in (message.get("metrics") or {}).items()},
            updated_at=at,
        )

    def _drop(self, fd: int) -> None:
        self._event_loop.remove_reader(fd)
        self._save_on_request = {
            rank: connection for rank, connection in self._save_on_request.items() if connection != fd
        }
        self._reported_invalid.discard(fd)
        self._in_place = {rank: connection for rank, connection in self._in_place.items() if connection != fd}
        self._connections.pop(fd).close()


def _send(connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Never blocks: a worker that does not read its messages does not get this one."""
    try:
        socket.send_fds(connection, [json.dumps(message).encode()], fds, socket.MSG_NOSIGNAL)
    except OSError as error:
        logger.debug("a worker did not take a message: %s", error)


def _plan_report(message: dict[str, Any]) -> PlanReport:
    return PlanReport(
        local_rank=int(message["local_rank"]),
        state=str(message["state"]),
        round=int(message["round"]),
        attempt=str(message["attempt"]),
        at=float(message.get("time", 0.0)),
        why=str(message.get("why", ""))[:200],
    )


def _report(message: dict[str, Any]) -> WorkerReport:
    began, step = message.get("began"), message.get("step")
    return WorkerReport(
        rank=int(message.get("rank", 0)),
        round=int(message.get("round", 0)),
        at=float(message.get("time", 0.0)),
        phase="step" if message["type"] == "progress" else str(message["phase"]),
        began=None if began is None else float(began),
        step=None if step is None else int(step),
        seconds=max(0.0, float(message.get("seconds", 0.0))),
        why=str(message.get("why", "")),
    )
