"""Times, durations and numbers as people read them. Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticjob_api.goodput import Goodput  # the models take longer to import than `elasticjob list` otherwise


def duration(seconds: float) -> str:
    """As kubectl writes ages.

    >>> [duration(each) for each in (0.4, 75, 600, 5400, 200_000)]
    ['0s', '75s', '10m', '90m', '2d7h']
    """
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m" + (f"{whole % 60}s" if whole % 60 else "")
    if whole < 3 * 3600:
        return f"{whole // 60}m"
    if whole < 48 * 3600:
        hours, minutes = divmod(whole // 60, 60)
        return f"{hours}h" + (f"{minutes}m" if minutes and hours < 8 else "")
    days, hours = divmod(whole // 3600, 24)
    return f"{days}d" + (f"{hours}h" if hours and days < 8 else "")


def age(since: datetime.datetime | None, now: datetime.datetime) -> str:
    """Empty if unknown."""
    return "" if since is None else duration((now - since).total_seconds())


def number(value: float | None) -> str:
    """Three significant digits; empty if unknown.

    >>> number(12345.6), number(0.01234), number(None)
    ('12346', '0.0123', '')
    """
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(amount: int, thing: str) -> str:
    """
    >>> count(1, "worker pod"), count(2, "worker pod")
    ('1 worker pod', '2 worker pods')
    """
    return f"{amount} {thing}" + ("" if amount == 1 else "s")


def first_line(text: str, width: int = 0) -> str:
    """Its first line, cut to `width` characters if that is not 0."""
    line = text.strip().partition("\n")[0]
    return line if not width or len(line) <= width else line[: width - 1] + "…"


def steps_lost(steps: int | None, *, expected: bool) -> str:
    """How many steps a change repeats. `expected`: whether it may have repeated any."""
    if steps is None:
        return "unknown" if expected else ""
    return str(steps)


def percentage(divided: Goodput) -> str:
    """The goodput, as exactly as it is known."""
    low, high = divided.low, divided.high
    if low is None or high is None:
        return "unknown"
    least, most = f"{100 * low:.1f} %", f"{100 * high:.1f} %"
    if least == most:
        return least
    return f"at least {least}" if high - low < 0.02 else f"{least} to {most}"


def parts(divided: Goodput) -> list[tuple[str, str]]:
    """What the wall time was spent on, and how long, without what took no second."""
    return [(part.value, duration(seconds)) for part, seconds in divided.seconds.items() if seconds >= 1]
