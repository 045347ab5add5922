"""What can be wrong with a listed checkpoint, in three words, and what follows from each. Plain and sharded ones alike.

absent       no longer listed: another process has removed it, after it had saved a newer one. The next is read.
unreadable   listed, but the storage does not return it. It may be intact, so it is tried again for a moment, and
             then it is an error: nothing older is used, and nothing is deleted.
corrupt      read, and not what was written. It is skipped with a warning, and deleted only after a newer one was
             saved.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from elasticjob_runtime.training.checkpoint.format import CorruptCheckpointError
from elasticjob_runtime.training.checkpoint.order import NOTHING, Choice, Held, State, choose

T = TypeVar("T")

TRIES = 5
PAUSE = 0.2
"""s before the next: the cache of a shared file system, or a file server that changes over, may need a moment."""


def first_line(error: BaseException) -> str:
    """A reason for the middle of a sentence. Messages of torch go on with tracebacks."""
    return str(error).strip().partition("\n")[0].rstrip(".") or repr(error)


class CheckpointError(Exception):
    """A checkpoint cannot be written or read, for a reason that a person has to fix. The message says which."""


class UnreadableError(CheckpointError):
    """The storage does not return a checkpoint that it lists."""

    state = NOTHING
    """Of that checkpoint."""

    def __init__(self, path: object, reason: object) -> None:
        super().__init__(
            f"Cannot read the checkpoint {path}: {reason}. It may be intact, so no older one is used and nothing was "
            "deleted. Repair the storage and start again, or remove this checkpoint to continue from the one before it."
        )


def newest(
    candidates: Callable[[], Sequence[Held]],
    job: str,
    read: Callable[[Choice], T],
    skipped: Callable[[State, CorruptCheckpointError], None],
) -> T | None:
    """What `read` returns of the newest state that is not corrupt; None: there is none. Pure, but for the pauses.

    candidates: lists what there is now. Raises UnreadableError if the newest stays unreadable.
    """
    corrupt: set[State] = set()
    failures: collections.Counter[State] = collections.Counter()
    while True:
        choice = choose([candidate for candidate in candidates() if candidate.state not in corrupt], job, shared=True)
        if choice.state == NOTHING:
            return None
        try:
            return read(choice)
        except CorruptCheckpointError as error:
            corrupt.add(choice.state)
            skipped(choice.state, error)
        except UnreadableError as error:
            failures[choice.state] += 1
            if failures[choice.state] == TRIES:
                error.state = choice.state
                raise
            time.sleep(PAUSE)  # it may be absent by then
