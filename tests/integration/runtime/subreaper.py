"""Makes the test process the parent of forked worker processes, as an agent is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from elasticjob_runtime.workers import linux


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Orphaned descendants become children of this process. Undone at the end: later tests do not wait for theirs."""
    linux.become_subreaper()
    try:
        yield
    finally:
        linux._libc.prctl(linux._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
