"""Snapshots that workers leave with their agent: file descriptors of memory that outlives them, SIGKILL included.

What is in the memory is the workers' business; the agent only holds it open, and hands it to who trains next on that
local rank.
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
    """A worker of an earlier round that is late must not undo what its successor has left; a successor may have gone
    back some steps."""
    return kept is None or offered.round > kept.round or (offered.round == kept.round and offered.step >= kept.step)


class Snapshots:
    """The newest of each local rank. Owns the descriptors."""

    def __init__(self) -> None:
        self._kept: dict[int, Snapshot] = {}

    def keep(self, local_rank: int, offered: Snapshot) -> bool:
        """False: there is a newer one, and the descriptors stay the caller's."""
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
