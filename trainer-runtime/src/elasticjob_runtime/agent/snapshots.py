"""Snapshots that workers hand to their agent: file descriptors of memory that survives the worker, even after SIGKILL.

The agent never reads the memory. It holds the descriptors open and passes them to the next worker of the same local
rank.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The state of one worker after `step`."""

    round: int
    step: int
    fds: tuple[int, ...]


def replaces(kept: Snapshot | None, offered: Snapshot) -> bool:
    """Whether `offered` replaces `kept`. A late worker of an earlier round must not replace its successor's snapshot,
    even if the successor has restarted from an earlier step."""
    return kept is None or offered.round > kept.round or (offered.round == kept.round and offered.step >= kept.step)


def free(close: Callable[[], object]) -> None:
    """Gives up memory in a thread: that takes 0.3 s per GiB, for which neighbours would hear nothing of this member."""
    try:
        threading.Thread(target=close, name="free-memory", daemon=True).start()
    except RuntimeError:  # the pod has no thread left
        close()


def _close_all(snapshot: Snapshot) -> None:
    for fd in snapshot.fds:
        os.close(fd)


class HeldSnapshots:
    """The newest snapshot of each local rank. Owns the descriptors."""

    def __init__(self) -> None:
        self._kept: dict[int, Snapshot] = {}

    def keep(self, local_rank: int, offered: Snapshot) -> bool:
        """Returns False if there is a newer snapshot; the caller then still owns the descriptors."""
        kept = self._kept.get(local_rank)
        if not replaces(kept, offered):
            return False
        self._kept[local_rank] = offered
        if kept is not None:
            free(lambda: _close_all(kept))
        return True

    def of(self, local_rank: int) -> Snapshot | None:
        return self._kept.get(local_rank)

    def close(self) -> None:
        for snapshot in self._kept.values():
            _close_all(snapshot)
        self._kept.clear()
