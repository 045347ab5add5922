"""Names to addresses. getaddrinfo blocks a thread for as long as a name's servers are silent, which a job's owner can
arrange.

So lookups have threads of their own, `PROMPT` of them at once; one that is not prompt gives its turn to the next and
goes on beside them, up to `MOST` in all. A name that was found before is then taken to be where it was. So the names of
etcds that answer do not wait behind those of etcds that do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

PROMPT, PROMPT_SECONDS = 16, 0.5
MOST = 512
REMEMBERED = 10_000
"""Names."""

Addresses = list[tuple[int, tuple[str, int]]]


class Lookup:
    """One for all etcds."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(PROMPT)
        self._found: dict[tuple[str, int], Addresses] = {}
        self._asked: dict[tuple[str, int], asyncio.Future[Addresses]] = {}
        """Lookups under way: who gives up and comes again waits for the same one."""

    async def addresses(self, host: str, port: int) -> Addresses:
        """(family, address) of each. Raises OSError."""
        if known := _literal(host, port):
            return [known]
        name = (host, port)
        if name not in self._asked:
            async with self._turns:
                asked = self._asked.get(name) or self._ask(name)
                await asyncio.wait([asked], timeout=PROMPT_SECONDS)
        else:
            asked = self._asked[name]
        if not asked.done() and name in self._found:
            return self._found[name]
        return await asyncio.shield(asked)

    def _ask(self, name: tuple[str, int]) -> asyncio.Future[Addresses]:
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Addresses] = loop.create_future()
        if len(self._asked) >= MOST:
            return _refused(asked, OSError("too many names of etcds cannot be looked up now"))
        self._asked[name] = asked

        def done(found: Addresses | OSError) -> None:
            del self._asked[name]
            if isinstance(found, OSError):
                _refused(asked, found)
                return
            self._found.pop(name, None)
            self._found[name] = found
            if len(self._found) > REMEMBERED:
                del self._found[next(iter(self._found))]
            asked.set_result(found)

        def look() -> None:
            found = _look(*name)
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(done, found)

        threading.Thread(target=look, name=f"lookup of {name[0]}", daemon=True).start()
        return asked


def _refused(asked: asyncio.Future[Addresses], error: OSError) -> asyncio.Future[Addresses]:
    asked.set_exception(error)
    asked.exception()  # perhaps nobody waits any more
    return asked


def _look(host: str, port: int) -> Addresses | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        return OSError("the name is none that can be looked up")
    except OSError as error:
        return error
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found[:8]]


def _literal(host: str, port: int) -> tuple[int, tuple[str, int]] | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return family, (host, port)
    return None
