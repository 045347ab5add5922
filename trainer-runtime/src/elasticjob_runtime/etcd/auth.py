"""The login token: requested on first use, renewed before it expires and whenever the server no longer knows it."""

from __future__ import annotations

import binascii
import json
import random
import threading
import time
from collections.abc import Callable

from elasticjob_runtime.etcd.config import EtcdCredentials
from elasticjob_runtime.etcd.interface import Denied, Unavailable
from elasticjob_runtime.etcd.responses import AuthDisabled

Login = Callable[[str, str], str]
"""Takes user and password, returns a token. Raises StoreError."""


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two logins with a rejected password, doubling each time. etcd checks passwords with bcrypt, so the
agents of a job whose password has changed would otherwise keep it busy."""


class TokenCache:
    """The token that all connections of a client share: etcd's members accept each other's tokens. Thread-safe; one
    login at a time."""

    def __init__(self, credentials: EtcdCredentials | None, clock: Callable[[], float] = time.time) -> None:
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = float("inf")
        self._refused: tuple[str, Denied] | None = None
        """The password that was last rejected, and the error."""
        self._refusals = 0
        self._ask_again_at = 0.0

    @property
    def has_credentials(self) -> bool:
        return self._credentials is not None

    def token(self, login: Login, timeout: float) -> str:
        """The token to send; empty if none is needed. Raises Denied or Unavailable."""
        if self._credentials is None:
            return ""
        if self._token and self._clock() < self._renew_at:
            return self._token
        if not self._lock.acquire(timeout=max(0.0, timeout)):
            raise Unavailable("logging in takes too long")
        try:
            if not self._token or self._clock() >= self._renew_at:
                self._renew(self._credentials, login)
            return self._token
        finally:
            self._lock.release()

    def _renew(self, credentials: EtcdCredentials, login: Login) -> None:
        try:
            password = credentials.read_password()
        except ValueError as error:
            raise Denied(str(error)) from error
        if self._refused is not None and self._refused[0] == password and self._clock() < self._ask_again_at:
            raise Denied(str(self._refused[1])) from self._refused[1]
        try:
            token = login(credentials.user, password)
        except AuthDisabled as error:
            # etcd's own clients go on. But who gives a user expects that others are kept out.
            raise Denied(
                f"user {credentials.user!r}: authentication is not enabled on this server, which accepts every client: "
                "enable it (etcdctl auth enable), or connect without user and password"
            ) from error
        except Denied as error:
            self._refusals = self._refusals + 1 if self._refused and self._refused[0] == password else 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._refusals - 1, 10))
            self._ask_again_at = self._clock() + pause * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load
            self._refused = (password, error)
            raise
        self._refused = None
        self._renew_at = renewal_time(token, self._clock())
        self._token = token

    def forget(self, token: str) -> None:
        """Discards a token that the server has rejected, unless another thread has already renewed it."""
        with self._lock:
            if token == self._token:
                self._token = ""


def renewal_time(token: str, now: float) -> float:
    """Unix time of the next login, before the token expires.

    A JWT states when it expires and cannot be extended, so it is renewed after 4/5 of its remaining lifetime. etcd's
    simple tokens have no such field and stay valid as long as they are used; unnecessary logins are costly (bcrypt on
    the server).
    """
    parts = token.split(".")
    if len(parts) != 3:
        return float("inf")
    try:
        claims = json.loads(binascii.a2b_base64(parts[1].replace("-", "+").replace("_", "/") + "=="))
        expires = float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
    return now + 0.8 * max(0.0, expires - now)
