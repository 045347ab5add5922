"""What a fault may cost, and what the job's status must say about it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasticjob_runtime.contract import PARTITION_GRACE

from hack.chaos.job import Seen

LEASE = 5.0
"""Seconds after which etcd removes a silent member."""
UNBOUNDED = float("inf")
CUT_OFF_GROUP_STOPS_WITHIN = PARTITION_GRACE + LEASE + 5.0
"""Seconds after the cut: lease and partition grace, and some time for a loaded machine."""

StatusCheck = Callable[[Sequence[Seen]], str]
"""Takes the statuses since the fault, and the one before it. Returns what is wrong with them, or an empty string."""


@dataclass(frozen=True)
class Expect:
    """What a fault may cost."""

    restarts: tuple[int, int] = (0, 0)
    """Restarts counted against `maxRestarts`: at least, at most."""
    together: float = 3.0
    """Seconds for which an older group may train while a newer one does."""
    new_group: bool | None = True
    """True: a new group takes over. False: training continues uninterrupted. None: either."""
    ends_within: float | None = None
    """Seconds after the start of the fault by which the previous group must have stopped; None if it need not stop."""
    pause_within: float | None = None
    """Longest time in seconds without a completed step, generous for a loaded machine. None: no limit."""
    same_pods: bool = False
    """No pod is replaced."""
    status: tuple[StatusCheck, ...] = ()
    """What the status must show in that time."""


def says(kind: str, status: str) -> StatusCheck:
    """The condition has that status at some point."""

    def look(seen: Sequence[Seen]) -> str:
        if any(item.condition(kind).get("status") == status for item in seen):
            return ""
        return f"{kind} was never {status}"

    return look


def never_trains_less(seen: Sequence[Seen]) -> str:
    """The status never shows fewer workers: none stopped."""
    worlds = {int(item.status.get("worldSize", 0)) for item in seen}
    return f"worldSize was {sorted(worlds)}" if len(worlds) > 1 else ""


def no_invented_failure(seen: Sequence[Seen]) -> str:
    """lastFailure must not change, because nothing failed."""
    first, last = (item.status.get("lastFailure") for item in (seen[0], seen[-1]))
    return f"lastFailure: {last}" if last != first else ""


def last_failure(reason: str) -> StatusCheck:
    def look(seen: Sequence[Seen]) -> str:
        found = seen[-1].status.get("lastFailure", {})
        return "" if found.get("reason") == reason else f"lastFailure is {found}, not {reason}"

    return look


def blames(*indices: int) -> StatusCheck:
    """lastFailure names these workers, in this order."""

    def look(seen: Sequence[Seen]) -> str:
        blamed = [str(item.status.get("lastFailure", {}).get("worker", "")).rpartition("-")[2] for item in seen[1:]]
        changes = [name for before, name in itertools.pairwise(["", *blamed]) if name != before]
        wanted = [str(index) for index in indices]
        return "" if changes[-len(wanted) :] == wanted else f"lastFailure was of workers {changes}, not {wanted}"

    return look


def is_not_in_the_future(seen: Sequence[Seen]) -> str:
    """The time of lastFailure is not in the future."""
    time_of = str(seen[-1].status.get("lastFailure", {}).get("time", ""))
    limit = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=1)
    return (
        f"lastFailure is of {time_of}, which is in the future" if time_of > limit.strftime("%Y-%m-%dT%H:%M:%SZ") else ""
    )


def message_names(*words: str) -> StatusCheck:
    """The message of lastFailure contains all of these words."""

    def look(seen: Sequence[Seen]) -> str:
        found = str(seen[-1].status.get("lastFailure", {}).get("message", ""))
        return "" if all(word in found for word in words) else f"lastFailure says {found!r}, without {words}"

    return look
