"""Errors in the command line."""

from __future__ import annotations

from collections.abc import Iterable

from elasticjob_runtime.contract import ExitCode


class UsageError(Exception):
    """A flag is wrong. The message says which, and what to write instead."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion to append to an error message; empty if no word is similar.

    >>> did_you_mean("lease_tl", ["lease_ttl", "prefix"])
    ' (did you mean lease_ttl?)'
    """
    import difflib  # only after a mistake: it costs 10 ms

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
    return f" (did you mean {near[0]}?)" if near else ""
