"""A writer at full speed that knows what it has committed, whatever happens to the server."""

from __future__ import annotations

import dataclasses
import threading

from elasticjob_runtime.etcd import Get, KeyRange, Put, Store, Unavailable


@dataclasses.dataclass(frozen=True)
class Write:
    key: str
    value: str
    revision: int


class Writer:
    """Writes increasing numbers to `keys` in turn, on a separate thread. After a lost answer, it reads whether the
    write was committed before it continues."""

    def __init__(self, store: Store, keys: list[str]) -> None:
        self._store = store
        self._keys = keys
        self._stopped = threading.Event()
        self.written: list[Write] = []
        self.unclear = 0
        """Writes whose answer was lost."""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def stop(self) -> list[Write]:
        self._stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the writer hangs"
        return self.written

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            key, value = self._keys[number % len(self._keys)], str(number)
            try:
                revision = self._store.put(key, value, timeout=3)
            except Unavailable:
                self.unclear += 1
                revision = self._look_up(key, value)
                if not revision:
                    continue
            self.written.append(Write(key, value, revision))

    def _look_up(self, key: str, value: str) -> int:
        """The revision of the write if it was committed, else 0. It cannot be committed later: the server it was sent
        to is gone or has answered."""
        while True:
            try:
                # A write first, so that a write still on its way is committed or lost by then.
                self._store.txn((), (Put(key + ".fence", value),), timeout=3)
                found = self._store.range(Get(KeyRange(key)), timeout=3).kvs
            except Unavailable:
                continue
            return found[0].mod_revision if found and found[0].value == value else 0
