"""Which modules the scripts of this agent's workers import, as the workers report them (script.ImportReporter)."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable

from elasticjob_runtime.event_loop import EventLoop

logger = logging.getLogger(__name__)


class ImportLog:
    def __init__(self, event_loop: EventLoop, on_import: Callable[[str], None]) -> None:
        """`on_import` is called once per module, in the order of the first import: a module comes before those it
        imports."""
        self._event_loop = event_loop
        self._on_import = on_import
        self._names: set[str] = set()
        self._warned = False

    def follow(self, connection: socket.socket) -> None:
        """Reads reports until the worker closes its end."""
        connection.setblocking(False)
        buffer = b""

        def read() -> None:
            nonlocal buffer
            try:
                data = connection.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._event_loop.remove_reader(connection.fileno())
                connection.close()
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))

        self._event_loop.add_reader(connection.fileno(), read)

    def _handle(self, report: object) -> None:
        """A module's name, or a list of variables that the script set too late."""
        if isinstance(report, str):
            if report not in self._names:
                self._names.add(report)
                self._on_import(report)
        elif isinstance(report, list) and not self._warned:
            self._warned = True
            logger.warning(
                "the script sets %s after its libraries were preloaded and had read it: set it in the environment "
                "of the agent instead, or use --start-method=spawn",
                ", ".join(map(str, report)),
            )
