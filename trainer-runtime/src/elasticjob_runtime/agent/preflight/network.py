"""The check `Network`: how fast data goes to and from other members, in MB/s.

Members that are checked at the same time transfer data in pairs, in up to three rounds, and publish how fast that was
after each; who is with whom follows from that (membership/preflight.py). No member waits for long: one whose partner
is not there has no speed in that round, and one that is alone has none at all.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping

from elasticjob_runtime.contract import Keys, PreflightValue, SpecValue
from elasticjob_runtime.etcd.interface import Get, KeyRange, Store, StoreError
from elasticjob_runtime.membership.preflight import ROUNDS, deal, partner
from elasticjob_runtime.rendezvous.network import PortRange, bind

logger = logging.getLogger(__name__)

GATHER_SECONDS = 10.0
"""How long to wait for other members at first. They start together if the job starts."""
ROUND_SECONDS = 8.0
"""How long to wait for the result of a round."""
SEND_SECONDS = 1.0
CONNECT_SECONDS = 3.0
MOST_BYTES = 256 << 20
MOST_CONNECTIONS = 8
"""At a time, whoever opens them."""
_CHUNK = bytes(256 << 10)
_POLL_SECONDS, _STORE_SECONDS = 0.2, 5.0
UNKNOWN = -1.0
_HELLO_BYTES = 512


class Receiver:
    """Receives what members send that know its word, and tells them how fast that was."""

    def __init__(self, address: str, ports: PortRange | None) -> None:
        """Raises OSError."""
        self._word = secrets.token_hex(16)
        self._speeds: dict[tuple[str, int], float] = {}
        self._arrived = threading.Condition()
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            port = bind(self._listener, ports)
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        self.endpoint = f"{address} {port} {self._word}"
        threading.Thread(target=self._accept, name="preflight", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()

    def speed(self, sender: str, round_number: int, timeout: float) -> float | None:
        """Of what `sender` sends, MB/s; None: nothing came in time."""
        key = (sender, round_number)
        with self._arrived:
            self._arrived.wait_for(lambda: key in self._speeds, timeout)
            return self._speeds.get(key)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                if not self._free.acquire(blocking=False):
                    connection.close()
                    continue
                threading.Thread(target=self._receive, args=(connection,), name="preflight", daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        try:
            self._receive_from(connection)
        finally:
            self._free.release()

    def _receive_from(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(ROUND_SECONDS)
            hello, _, rest = connection.recv(_HELLO_BYTES, socket.MSG_WAITALL).partition(b"\n")
            word, sender, round_number = hello.decode().split(" ")
            if not hmac.compare_digest(word.encode(), self._word.encode()):
                return
            began, count = time.monotonic(), len(rest)
            while data := connection.recv(len(_CHUNK)):
                count += len(data)
                if time.monotonic() - began > ROUND_SECONDS:
                    return
            speed = _speed(count, time.monotonic() - began)
            with self._arrived:
                self._speeds[sender, int(round_number)] = speed
                self._arrived.notify_all()
            connection.sendall(f"{speed}\n".encode())


def _speed(count: int, seconds: float) -> float:
    """MB/s."""
    return count / 1e6 / max(seconds, 1e-6)


def send(endpoint: str, me: str, round_number: int) -> float:
    """Returns how fast the other side received it, MB/s. Raises OSError, ValueError."""
    address, port, word = endpoint.split(" ")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        # A large buffer would hide a slow network: all would be sent, and still be here.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(_CHUNK))
        connection.settimeout(CONNECT_SECONDS)
        connection.connect((address, int(port)))
        connection.settimeout(ROUND_SECONDS)
        connection.sendall(f"{word} {me} {round_number}\n".encode().ljust(_HELLO_BYTES, b"\0"))
        until, left = time.monotonic() + SEND_SECONDS, MOST_BYTES
        while left > 0 and time.monotonic() < until:
            left -= connection.send(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        return float(connection.makefile().readline())


def read_reports(store: Store, keys: Keys) -> dict[str, PreflightValue]:
    """Of all members, by name, as far as they can be read: another version may have written others. Raises
    StoreError."""
    found = {}
    for kv in store.range(Get(KeyRange.prefix(keys.preflights)), timeout=_STORE_SECONDS).kvs:
        try:
            found[kv.key.removeprefix(keys.preflights)] = PreflightValue.from_json(kv.value)
        except ValueError as error:
            logger.warning("preflight: ignoring %s: %s", kv.key, error)
    return found


class NetworkCheck:
    """Of one member."""

    def __init__(
        self, store: Store, keys: Keys, me: str, *, address: str, ports: PortRange | None = None, most: int
    ) -> None:
        """`most`: the most members that train."""
        self._store = store
        self._keys = keys
        self._me = me
        self._address = address
        self._ports = ports
        self._most = most
        self._speeds: list[float] = []

    def speed(self) -> float | None:
        """The best of all rounds, MB/s; None: not known."""
        try:
            receiver = Receiver(self._address, self._ports)
        except OSError as error:
            logger.warning("preflight: the network is not checked: %s", error)
            return None
        try:
            return self._transfers(receiver)
        except StoreError as error:
            logger.warning("preflight: the network is not checked: %s", error)
            return None
        finally:
            receiver.close()

    def _transfers(self, receiver: Receiver) -> float | None:
        """Raises StoreError."""
        self._publish(receiver)
        expected = self._expected()
        there = self._wait(lambda reports: len(reports) >= expected, GATHER_SECONDS)
        members: dict[str, float | None] = dict.fromkeys([*there, self._me])
        for round_number in range(1, ROUNDS + 1):
            other = partner(self._me, deal(members, round_number))
            self._speeds.append(UNKNOWN if other is None else self._transfer(receiver, other, round_number))
            self._publish(receiver)
            known = self._wait(_have_ended(round_number, members), ROUND_SECONDS)
            # Not their later rounds: all members must deal the same pairs.
            ended = {
                name: report.speeds[:round_number]
                for name, report in known.items()
                if len(report.speeds) >= round_number
            }
            members = {name: _best(speeds) for name, speeds in {**ended, self._me: self._speeds}.items()}
        return _best(self._speeds)

    def _transfer(self, receiver: Receiver, other: str, round_number: int) -> float:
        """The slower of both directions, MB/s; 0: the other member is there and cannot be reached."""
        try:
            sent = send(self._others()[other].endpoint, self._me, round_number)
        except (OSError, ValueError, KeyError) as error:
            logger.warning("preflight: cannot send to %s: %s", other, error)
            report = self._others().get(other)
            sent = 0.0 if report is not None and len(report.speeds) < round_number else UNKNOWN
        received = receiver.speed(other, round_number, ROUND_SECONDS)
        known = [speed for speed in (sent, received) if speed is not None and speed != UNKNOWN]
        return round(min(known, default=UNKNOWN), 3)

    def _expected(self) -> int:
        """How many others there should be."""
        kv = self._store.get(self._keys.spec, timeout=_STORE_SECONDS)
        with contextlib.suppress(ValueError):
            return ((SpecValue.from_json(kv.value).wanted if kv is not None else 0) or self._most) - 1
        return self._most - 1

    def _publish(self, receiver: Receiver) -> None:
        value = PreflightValue(endpoint=receiver.endpoint, speeds=self._speeds)
        self._store.put(self._keys.preflight(self._me), value.to_json(), timeout=_STORE_SECONDS)

    def _others(self) -> dict[str, PreflightValue]:
        """That are being checked now."""
        reports = read_reports(self._store, self._keys)
        return {name: report for name, report in reports.items() if report.endpoint and name != self._me}

    def _wait(
        self, enough: Callable[[Mapping[str, PreflightValue]], bool], seconds: float
    ) -> Mapping[str, PreflightValue]:
        until = time.monotonic() + seconds
        while True:
            reports = self._others()
            if enough(reports) or time.monotonic() > until:
                return reports
            time.sleep(_POLL_SECONDS)


def _have_ended(
    round_number: int, members: Mapping[str, float | None]
) -> Callable[[Mapping[str, PreflightValue]], bool]:
    """Whether these members have published this round, or are not there any more."""
    return lambda reports: all(len(reports[name].speeds) >= round_number for name in members if name in reports)


def _best(speeds: list[float]) -> float | None:
    """None: not known. That a single partner did not answer may be the partner's fault, which may be gone."""
    known = [speed for speed in speeds if speed != UNKNOWN]
    return max(known) if any(known) or len(known) > 1 else None
