"""Name resolution. getaddrinfo blocks a thread for as long as the name servers are silent, which the owner of a job can
provoke.

So each lookup runs in its own thread. `FAST_LOOKUPS` run at once; a slow one gives its slot to the next and continues
in the background, up to `MAX_LOOKUPS` in total. In the meantime, the last known address of its name is used. Lookups
that are answered therefore never wait behind lookups that are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

FAST_LOOKUPS, FAST_SECONDS = 16, 0.5
MAX_LOOKUPS = 512
MAX_CACHED = 10_000
"""Names."""

Addresses = list[tuple[int, tuple[str, int]]]


class Resolver:
    """Shared by all etcds."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(FAST_LOOKUPS)
        self._cache: dict[tuple[str, int], Addresses] = {}
        self._pending: dict[tuple[str, int], asyncio.Future[Addresses]] = {}
        """Lookups in progress: a retry waits for the same one."""

    async def addresses(self, host: str, port: int) -> Addresses:
        """(family, address) of each. Raises OSError."""
        if known := _literal(host, port):
            return [known]
        name = (host, port)
        if name not in self._pending:
            async with self._slots:
                pending = self._pending.get(name) or self._start(name)
                await asyncio.wait([pending], timeout=FAST_SECONDS)
        else:
            pending = self._pending[name]
        if not pending.done() and name in self._cache:
            return self._cache[name]
        return await asyncio.shield(pending)

    def _start(self, name: tuple[str, int]) -> asyncio.Future[Addresses]:
        loop = asyncio.get_running_loop()
        pending: asyncio.Future[Addresses] = loop.create_future()
        if len(self._pending) >= MAX_LOOKUPS:
            return _failed(pending, OSError("too many name lookups are in progress"))
        self._pending[name] = pending

        def done(found: Addresses | OSError) -> None:
            del self._pending[name]
            if isinstance(found, OSError):
                _failed(pending, found)
                return
            self._cache.pop(name, None)
            self._cache[name] = found
            if len(self._cache) > MAX_CACHED:
                del self._cache[next(iter(self._cache))]
            pending.set_result(found)

        def look() -> None:
            found = _getaddrinfo(*name)
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(done, found)

        threading.Thread(target=look, name=f"lookup of {name[0]}", daemon=True).start()
        return pending


def _failed(pending: asyncio.Future[Addresses], error: OSError) -> asyncio.Future[Addresses]:
    pending.set_exception(error)
    pending.exception()  # retrieved, in case no caller awaits it
    return pending


def _getaddrinfo(host: str, port: int) -> Addresses | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        return OSError("the name is invalid")
    except OSError as error:
        return error
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found[:8]]


def _literal(host: str, port: int) -> tuple[int, tuple[str, int]] | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return family, (host, port)
    return None
