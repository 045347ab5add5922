"""Keeps a lease alive on a dedicated thread, for any store."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from elasticjob_runtime.etcd.interface import LeaseLost, StoreError, is_final

log = logging.getLogger(__name__)


def new_lease_id() -> int:
    """A random positive 63-bit number. (From os.urandom, because importing `secrets` costs 5 MB.)"""
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


class KeptLease:
    """Implements interface.LeaseKeepAlive.

    `renew` extends the lease and returns its TTL in seconds. It raises LeaseLost if the store reports that the lease is
    gone, or another StoreError if the store does not answer. `interrupt` makes the renewal in progress and all later
    ones fail. The thread calls `on_end` when it ends. `expires_at` counts from the moment *before* a renewal was sent,
    because the store cannot have counted from an earlier one.
    """

    def __init__(
        self,
        lease_id: int,
        ttl: float,
        granted_at: float,
        renew: Callable[[], float],
        revoke: Callable[[], None],
        on_lost: Callable[[str], None],
        *,
        interrupt: Callable[[], None],
        on_end: Callable[[KeptLease], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = lease_id
        self._ttl = ttl
        self._expires_at = granted_at + ttl
        self._renew = renew
        self._revoke = revoke
        self._on_lost = on_lost
        self._interrupt = interrupt
        self._on_end = on_end
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{lease_id:x}", daemon=True)
        self._thread.start()

    @property
    def ttl(self) -> float:
        """The granted seconds, which may be more than requested."""
        return self._ttl

    @property
    def expires_at(self) -> float:
        return self._expires_at

    def stop(self) -> None:
        self._stopped.set()
        self._interrupt()

    def revoke(self) -> None:
        self.stop()
        try:
            self._revoke()
        except LeaseLost:
            pass
        except StoreError as error:
            log.info("lease %x is left to expire: %s", self.id, error)

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:
            log.exception("lease %x is not renewed any more because of a bug", self.id)
            self._lost(f"its renewal failed: {error!r}")
        finally:
            self._interrupt()
            self._on_end(self)

    def _keep(self) -> None:
        due = self._expires_at - self._ttl * 2 / 3
        failing = False
        while not self._stopped.wait(max(0.0, due - self._clock())):
            started = self._clock()
            try:
                self._ttl = self._renew()
            except LeaseLost as error:
                self._lost(str(error))
                return
            except StoreError as error:
                if not failing and not self._stopped.is_set():
                    log.warning("lease %x cannot be renewed for now: %s", self.id, error)
                failing = True
                # Frequent retries do not help against a rejection, and a login costs etcd a tenth of a second of CPU.
                due = self._clock() + self._ttl / (3 if is_final(error) else 20)
            else:
                failing = False
                self._expires_at = started + self._ttl
                due = started + self._ttl / 3

    def _lost(self, reason: str) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        try:
            self._on_lost(reason)
        except Exception:
            log.exception("on_lost of lease %x failed", self.id)
