"""With which certificate and user the operator talks to one etcd that it does not run."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from elasticjob_runtime.etcd import Denied

from elasticjob_operator.credentials import EtcdCredentials

ReadCredentials = Callable[[], Awaitable[EtcdCredentials]]
"""Raises StoreError."""


class Login:
    """`open` before use. Credentials are read once: each connection of a watch has a Login of its own, so that a Secret
    that was changed is read after the next interruption."""

    def __init__(self, read: ReadCredentials) -> None:
        self._read = read
        self._context: ssl.SSLContext | None = None
        self._user, self._password = "", ""
        self._token = ""
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Raises StoreError."""
        if self._context is None:
            found = await self._read()
            self._user, self._password = found.user, found.password
            self._context = found.context()

    def tls(self) -> ssl.SSLContext:
        assert self._context is not None, "not open"
        return self._context

    async def token(self, authenticate: Callable[[str, str], Awaitable[str]]) -> str:
        """The token to send; empty: the credentials have no user. `authenticate(user, password)` raises StoreError."""
        if not self._user:
            return ""
        async with self._lock:
            if not self._token:
                self._token = await authenticate(self._user, self._password)
            return self._token

    def forget(self, token: str) -> None:
        """The server rejected it."""
        if token == self._token:
            self._token = ""


def check_secure(user: str, *, tls: bool) -> None:
    """Raises Denied: a password is never sent without TLS."""
    if user and not tls:
        raise Denied("its address does not start with https://, and a password is sent over TLS only")
