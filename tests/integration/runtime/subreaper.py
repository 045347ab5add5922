"""A test that is the parent of forked workers, as an agent is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from elasticjob_runtime.workers import linux


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Orphans below this process become its children, but not for longer: nobody would wait for those of later
    tests."""
    linux.become_subreaper()
    try:
        yield
    finally:
        linux._libc.prctl(linux._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
