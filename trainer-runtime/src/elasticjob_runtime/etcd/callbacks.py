"""Calls a watch's callback, and starts no call after the watch was cancelled."""

from __future__ import annotations

import logging
import threading

from elasticjob_runtime.etcd.interface import WatchCallback, WatchFailure, WatchUpdate

log = logging.getLogger(__name__)


class Delivery:
    def __init__(self, callback: WatchCallback) -> None:
        self._callback = callback
        # Held during the callback, so that stop() waits for a running one; reentrant, so that the callback itself may
        # cancel the watch.
        self._lock = threading.RLock()
        self._stopped = False

    def __call__(self, item: WatchUpdate | WatchFailure) -> None:
        with self._lock:
            if self._stopped:
                return
            try:
                self._callback(item)
            except Exception:
                log.exception("the callback of a watch failed; the watch continues")

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
