"""Lines of worker pods' logs, with their times. Pure."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache
from typing import NamedTuple

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")


class Line(NamedTuple):
    """A line of a worker pod's log."""

    at: int
    """Unix time by the node's clock, ns; 0: unknown."""
    source: str
    """Name of the worker pod."""
    text: str


def parse_line(raw: bytes, source: str) -> Line:
    """A line of a log that was read with timestamps.

    >>> parse_line(b"1970-01-01T00:00:01.5Z step 1", "bert-worker-0")
    Line(at=1500000000, source='bert-worker-0', text='step 1')
    """
    found = _STAMP.match(raw)
    if found is None:
        return Line(0, source, _text(raw))
    seconds, fraction, zone = found.groups()
    at = _seconds(seconds.decode(), zone.decode()) * 1_000_000_000 + int((fraction or b"0").ljust(9, b"0"))
    return Line(at, source, _text(raw[found.end() :]))


def _text(raw: bytes) -> str:
    """A progress bar rewrites its line with carriage returns: its last state counts."""
    return raw.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")


@lru_cache(maxsize=64)
def _seconds(stamp: str, zone: str) -> int:
    return int(datetime.datetime.fromisoformat(stamp + zone.replace("Z", "+00:00")).timestamp())


def whole_seconds(at: int) -> str:
    """RFC 3339, rounded down.

    >>> whole_seconds(1_500_000_000)
    '1970-01-01T00:00:01Z'
    """
    moment = datetime.datetime.fromtimestamp(at // 1_000_000_000, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
