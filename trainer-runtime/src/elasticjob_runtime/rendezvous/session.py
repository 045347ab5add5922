"""The thread that owns the RendezvousCore.

The agent's event loop must never wait for the network, so all store calls are made on this thread, one after the other.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from elasticjob_runtime.contract import (
    HangValue,
    ImportsValue,
    Keys,
    MemberValue,
    ProgressValue,
    StragglersValue,
    TransitionValue,
)
from elasticjob_runtime.etcd.interface import Store, StoreError
from elasticjob_runtime.membership.actions import StoreAction
from elasticjob_runtime.rendezvous.core import Callbacks, RendezvousCore, Told

logger = logging.getLogger(__name__)


class RendezvousThread:
    """Runs the core from `start()` to `close()` and executes actions passed to `submit()`. Callbacks are called on its
    thread."""

    def __init__(
        self, store: Store, keys: Keys, me: str, member: MemberValue, callbacks: Callbacks, *, lease_ttl: float
    ) -> None:
        self._store = store
        self._silenced = False
        """Set by `close`: a store call that ends later must not reach the owner."""

        def unless_closed(callback: Callable[..., None]) -> Callable[..., None]:
            return lambda *arguments: None if self._silenced else callback(*arguments)

        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        names = [field.name for field in dataclasses.fields(callbacks)]
        wrapped: dict[str, Any] = {name: unless_closed(getattr(callbacks, name)) for name in names}
        self._callbacks = Callbacks(**{**wrapped, "post": self._inbox.put})
        self._core = RendezvousCore(store, keys, me, member, self._callbacks, lease_ttl=lease_ttl)
        self._progress: collections.deque[ProgressValue] = collections.deque(maxlen=1)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, action: StoreAction) -> None:
        """Executes `action`; `on_done` follows. Submit one action at a time."""
        self._inbox.put(lambda: self._execute(action))

    def publish_progress(self, progress: ProgressValue) -> None:
        """Best effort; while the store is unreachable, only the latest progress is kept."""
        self._progress.append(progress)
        self._inbox.put(self._put_progress)

    def publish_hang(self, hang: HangValue | None) -> None:
        """None: it is over. While the store is unreachable, it is tried again."""
        self._inbox.put(lambda: self._core.put_hang(hang))

    def publish(self, report: ImportsValue | TransitionValue | StragglersValue) -> None:
        """Best effort: without it, the others wait while a joining member imports, or the operator's history lacks the
        durations."""
        self._inbox.put(lambda: self._core.put_report(report))

    def exchange(self, told: Told, on_all: Callable[[dict[str, Told]], None] | None) -> None:
        """Best effort. `on_all`: called with what all members have told last, by name; None: it is not needed."""
        self._inbox.put(lambda: self._core.exchange(told, on_all))

    @property
    def lease_expires_at(self) -> float | None:
        return self._core.lease_expires_at

    def close(self, timeout: float = 2.0) -> None:
        """Revokes the lease, so that the others need not wait until it expires. Takes at most `timeout` seconds."""
        self._inbox.put(self._leave)
        self._thread.join(timeout)
        self._silenced = True

    def _run(self) -> None:
        while not self._closed:
            try:
                self._step()
            except Exception:
                # Continue: otherwise renewals of the lease would keep this member registered, but without a watch.
                logger.exception("internal error in the rendezvous thread; it continues")

    def _step(self) -> None:
        try:
            work = self._inbox.get(timeout=self._timeout())
        except queue.Empty:
            work = self._core.tick
        work()
        if self._inbox.empty():  # updates that arrive together make one view
            self._core.flush()

    def _execute(self, action: StoreAction) -> None:
        try:
            self._core.execute(action)
        except Exception as error:
            self._callbacks.on_done(action, StoreError(f"internal error: {error!r}"))
            raise

    def _timeout(self) -> float | None:
        due = self._core.due
        return None if due is None else max(0.0, due - time.monotonic())

    def _put_progress(self) -> None:
        if self._progress:
            self._core.put_progress(self._progress.popleft())

    def _leave(self) -> None:
        self._closed = True
        self._core.leave()
        self._store.close()
