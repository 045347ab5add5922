"""What two agents send each other, and how each knows that the other belongs to the same run. Pure: bytes in, bytes
out.

The agent that connects is the client. Both know the run's secret, and nothing but a keyed digest of it is ever sent:

    client -> server   hello      purpose, the client's nonce
    server -> client   greeting   the server's nonce, the round of the plan that it knows
    client -> server   confirm    not for probes: the client answers this connection, and is no recording
    server -> client   beat ...   only for heartbeats: the round of the plan that the server knows
    client -> server   copy       only for copies: a snapshot (copy_stream.py)

Every message has a fixed size and ends with its HMAC, which is checked before anything else in it is read. The server
sends nothing before it has seen a valid hello. The HMAC also covers the server's incarnation and the nonces, so a
recorded message is worth nothing on another connection or at another agent; beats also cover their number, so none can
be repeated, left out or reordered. Nonces rather than times: clocks of machines differ.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Sequence

from elasticjob_runtime.contract import SecretValue

NONCE_SIZE = 16
MAC_SIZE = 16
"""Bytes of the HMAC-SHA256 that are sent: half of it, as RFC 2104 allows."""

_MAGIC = b"elasticjob-1"
_ROUND_SIZE = 8

HELLO_SIZE = len(_MAGIC) + 1 + NONCE_SIZE + MAC_SIZE
CONFIRM_SIZE = MAC_SIZE
_GREETING_SIZE = NONCE_SIZE + _ROUND_SIZE + MAC_SIZE
_BEAT_SIZE = _ROUND_SIZE + MAC_SIZE


class Purpose(enum.Enum):
    """Why an agent connects to another one."""

    PROBE = b"P"
    """Is it alive? The server closes the connection after its greeting."""
    HEARTBEATS = b"H"
    COPY = b"C"
    """The client gives the server a copy of a snapshot."""


_PURPOSES = frozenset(purpose.value for purpose in Purpose)


class NotAuthenticError(Exception):
    """The other side is not the expected agent of this run."""


class MessageKey:
    """Makes and checks the HMACs of the messages on one connection, which follow each other in the same order on both
    sides."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._messages = 0

    def mac(self, message: bytes | memoryview) -> bytes:
        """Of the next message."""
        mac = hmac.new(self._key, b"copy" + self._messages.to_bytes(8, "big"), "sha256")
        mac.update(message)
        self._messages += 1
        return mac.digest()[:MAC_SIZE]

    def require(self, mac: bytes, message: bytes | memoryview) -> None:
        """Raises NotAuthenticError if `mac` is not that of the next message."""
        if not _equal(mac, self.mac(message)):
            raise NotAuthenticError


class Client:
    """The side that connects."""

    def __init__(self, secret: SecretValue, incarnation: str, purpose: Purpose, nonce: bytes) -> None:
        """`incarnation`: of the agent that must answer. `nonce`: NONCE_SIZE random bytes."""
        self._key = secret.key
        self._about = (purpose.value, nonce, incarnation.encode())
        self._rest = b""
        self._expected = _GREETING_SIZE
        self._beats = 0
        self._reply = b""
        self.hello = _MAGIC + purpose.value + nonce + _mac(self._key, b"hello", *self._about)
        """To send first."""

    @property
    def reply(self) -> bytes:
        """What to send now, once; may be empty."""
        reply, self._reply = self._reply, b""
        return reply

    def message_key(self) -> MessageKey:
        """Once the server has answered."""
        return MessageKey(self._key)

    def receive(self, data: bytes) -> Sequence[int]:
        """Takes the next bytes of the server. Returns the rounds in the messages that are complete now. Raises
        NotAuthenticError."""
        rounds: list[int] = []
        self._rest += data
        while len(self._rest) >= self._expected:
            message, self._rest = self._rest[: self._expected], self._rest[self._expected :]
            rounds.append(self._take_beat(message) if self._expected == _BEAT_SIZE else self._take_greeting(message))
        return rounds

    def _take_greeting(self, message: bytes) -> int:
        nonce, number = message[:NONCE_SIZE], message[NONCE_SIZE:-MAC_SIZE]
        _require(message, _mac(self._key, b"greeting", *self._about, nonce, number))
        self._key = _session_key(self._key, *self._about, nonce)
        self._reply = _mac(self._key, b"confirm")
        self._expected = _BEAT_SIZE
        return int.from_bytes(number, "big")

    def _take_beat(self, message: bytes) -> int:
        number = message[:-MAC_SIZE]
        _require(message, _beat_mac(self._key, self._beats, number))
        self._beats += 1
        return int.from_bytes(number, "big")


class ServerHandshake:
    """The server's side of one connection."""

    def __init__(self, known: Sequence[SecretValue], incarnation: str, hello: bytes, nonce: bytes) -> None:
        """`known`: the run's secret, and the one before if it has just changed. `nonce`: NONCE_SIZE random bytes.

        Raises NotAuthenticError if the hello is not that of an agent of this run.
        """
        if len(hello) != HELLO_SIZE or not could_be_hello(hello):
            raise NotAuthenticError
        about = (hello[len(_MAGIC) : len(_MAGIC) + 1], hello[len(_MAGIC) + 1 : -MAC_SIZE], incarnation.encode())
        keys = (secret.key for secret in known)
        key = next((one for one in keys if _equal(hello[-MAC_SIZE:], _mac(one, b"hello", *about))), None)
        if key is None or about[0] not in _PURPOSES:
            raise NotAuthenticError
        self.purpose = Purpose(about[0])
        self._key, self._about, self._nonce = key, about, nonce
        self._session_key = _session_key(key, *about, nonce)

    def greeting(self, round_number: int) -> bytes:
        number = round_number.to_bytes(_ROUND_SIZE, "big")
        return self._nonce + number + _mac(self._key, b"greeting", *self._about, self._nonce, number)

    def session(self, confirm: bytes) -> Session:
        """`confirm`: CONFIRM_SIZE bytes. Raises NotAuthenticError."""
        _require(confirm, _mac(self._session_key, b"confirm"))
        return Session(self._session_key)


class Session:
    """The server's side of a connection, once the client is known."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._beats = 0

    def beat(self, round_number: int) -> bytes:
        """The next heartbeat. Every one must be sent, in order."""
        number = round_number.to_bytes(_ROUND_SIZE, "big")
        beat = number + _beat_mac(self._key, self._beats, number)
        self._beats += 1
        return beat

    def message_key(self) -> MessageKey:
        """For what is neither a probe nor a heartbeat."""
        return MessageKey(self._key)


def could_be_hello(beginning: bytes) -> bool:
    """Whether a hello may begin like this."""
    return beginning[: len(_MAGIC)] == _MAGIC[: len(beginning)]


def _session_key(key: bytes, *about: bytes) -> bytes:
    return _digest(key, b"session", *about)


def _beat_mac(key: bytes, beats: int, number: bytes) -> bytes:
    return _mac(key, b"beat", beats.to_bytes(8, "big"), number)


def _mac(key: bytes, label: bytes, *parts: bytes) -> bytes:
    return _digest(key, label, *parts)[:MAC_SIZE]


def _digest(key: bytes, *parts: bytes) -> bytes:
    """Each part is preceded by its length, so that no two lists of parts give the same message."""
    return hmac.digest(key, b"".join(len(part).to_bytes(2, "big") + part for part in parts), "sha256")


def _require(message: bytes, mac: bytes) -> None:
    if not _equal(message[-MAC_SIZE:], mac):
        raise NotAuthenticError


def _equal(mac: bytes, expected: bytes) -> bool:
    """Takes the same time wherever they differ."""
    return hmac.compare_digest(mac, expected)
