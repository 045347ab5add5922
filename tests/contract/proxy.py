"""A TCP proxy on loopback that can cut, refuse or silence connections, as networks and middleboxes do."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Proxy:
    """Forwards `port` of an address to another port of 127.0.0.1."""

    def __init__(self, target: int, address: str = "127.0.0.1") -> None:
        self._target = target
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._refusing = False
        self._to_drop = 0
        self._closed = False
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{address}:{self.port}"
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def connections(self) -> int:
        """The number of connections accepted so far."""
        with self._lock:
            return len(self._links)

    @property
    def answers(self) -> bytes:
        """Everything that the server has sent so far."""
        with self._lock:
            return b"".join(bytes(link.answers) for link in self._links)

    def refuse(self) -> None:
        """Ends every connection, and immediately closes new ones."""
        with self._lock:
            self._refusing = True
            for link in self._links:
                link.close()

    def admit(self) -> None:
        with self._lock:
            self._refusing = False

    def cut(self) -> None:
        """Ends every connection, but accepts new ones."""
        self.refuse()
        self.admit()

    def drop_answers(self, count: int) -> None:
        """Drops the next `count` answers: their requests arrive, and the connection is closed instead of the answer."""
        with self._lock:
            self._to_drop = count

    def drops_this(self) -> bool:
        with self._lock:
            self._to_drop -= 1
            return self._to_drop >= 0

    def silence(self) -> None:
        """Keeps existing connections open but forwards nothing on them; accepts new ones."""
        with self._lock:
            for link in self._links:
                link.silent = True

    def close(self) -> None:
        self._closed = True
        self.refuse()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._refusing:
                    client.close()
                    continue
                try:
                    link = _Link(self, client, socket.create_connection(("127.0.0.1", self._target)))
                except OSError:
                    client.close()
                    continue
                self._links.append(link)
            threading.Thread(target=link.run, name="proxy-link", daemon=True).start()


class _Link:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._pair = (client, server)
        self.silent = False
        self.answers = bytearray()

    def run(self) -> None:
        client, server = self._pair
        other = {client: server, server: client}
        with contextlib.suppress(OSError, ValueError):
            while True:
                for source in select.select(self._pair, (), ())[0]:
                    data = source.recv(65536)
                    if not data:
                        return self.close()
                    if source is server:
                        self.answers += data
                        if self._proxy.drops_this():
                            return self.close()
                    if not self.silent:
                        other[source].sendall(data)
        return self.close()

    def close(self) -> None:
        for end in self._pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
