"""Snapshots that workers hand to their agent: file descriptors of memory that survives the worker, even after SIGKILL.

The agent never reads the memory. It holds the descriptors open and passes them to the next worker of the same local
rank.
"""

from __future__ import annotations

import dataclasses
import os


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


class Snapshots:
    """The newest snapshot of each local rank. Owns the descriptors."""

    def __init__(self) -> None:
        self._kept: dict[int, Snapshot] = {}

    def keep(self, local_rank: int, offered: Snapshot) -> bool:
        """Returns False if there is a newer snapshot; the caller then still owns the descriptors."""
        kept = self._kept.get(local_rank)
        if not replaces(kept, offered):
            return False
        self._kept[local_rank] = offered
        for fd in kept.fds if kept is not None else ():
            os.close(fd)
        return True

    def of(self, local_rank: int) -> Snapshot | None:
        return self._kept.get(local_rank)

    def close(self) -> None:
        for snapshot in self._kept.values():
            for fd in snapshot.fds:
                os.close(fd)
        self._kept.clear()
