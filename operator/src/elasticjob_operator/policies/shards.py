"""Which replica of the operator leads which shard of the jobs: what to do about the Leases, given what was last read.

A job belongs to a shard by its name, and a shard to the replica that holds the shard's Lease.

    a Lease                                                        the replica
    is released, or unchanged for its duration                     acquires it
    was changed by anyone else than its holder, or deleted         waits for its duration: the holder may still act
    says another number of shards, and is held                     acquires none: the jobs are divided in another way
    is held by a replica with two Leases more than this one        asks for it, one at a time
    is asked for by a replica with two Leases less than this one   releases it
    says another number than when its holder acquired it           ignores that: someone has edited it

The Lease of shard 0 decides between replicas with different numbers of shards. A replica acts on a shard only after it
has read all Leases again since it acquired it, and found none that is held with another number: of two that acquire at
the same time, at least one sees the other. What it holds but does not act on is released where it found one, and all
of it where the Lease of shard 0 says another number.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from elasticjob_operator.names import NamespacedName

SHARDS_ANNOTATION = "elasticjob.dev/shards"
"""On each Lease: the number of shards of its holder. Absent: 1, as in releases without shards."""
WANTED_ANNOTATION = "elasticjob.dev/wanted-by"
"""The replica that asks for the Lease; once it is released, that one acquires it."""
LONGEST_LEASE = 300.0
"""No Lease is respected for longer than this without a renewal, s, whatever someone has written into it."""
SINCE_LAST_LEADER = 3.0
"""Durations of a Lease, at most, from the end of a leader until another one leads."""
MOST_DIGITS = 4
"""Of a number of a shard, or of shards: no operator has more."""
RELEASED_SECONDS = 1.0
"""leaseDurationSeconds of a released Lease: the API server accepts no less."""


def shard_of(key: NamespacedName, count: int) -> int:
    """The same in every process and release."""
    if count == 1:
        return 0
    return int.from_bytes(hashlib.blake2b("/".join(key).encode(), digest_size=8).digest(), "big") % count


def takeover_order(
    changed_at: Mapping[NamespacedName, float], *, now: float, lease_seconds: float
) -> tuple[list[NamespacedName], list[NamespacedName]]:
    """(jobs that a new leader reconciles first, all others). `changed_at`: when something last happened to each, s;
    -inf: nothing has.

    The last leader may have ended some durations of a Lease ago. Of what happened since, it may have seen the earlier
    part, so the latest comes first.
    """
    since = now - SINCE_LAST_LEADER * lease_seconds
    by_time = sorted(changed_at, key=changed_at.__getitem__, reverse=True)
    first = [key for key in by_time if changed_at[key] > since]
    return first, by_time[len(first) :]


def lease_name(base: str, shard: int) -> str:
    return f"{base}-shard-{shard}" if shard else base


def shard_of_lease(base: str, name: str) -> int | None:
    """None: it is another Lease."""
    if name == base:
        return 0
    number = name.removeprefix(f"{base}-shard-")
    if not (number.isascii() and number.isdecimal() and len(number) <= MOST_DIGITS):
        return None
    return int(number) if name == lease_name(base, int(number)) else None  # not 01


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShardLease:
    """The Lease of a shard, as last seen to change. Anyone may have written it."""

    holder: str = ""
    count: int = 1
    """Of shards, by its holder."""
    wanted_by: str = ""
    duration: float
    """s"""
    since: float
    """By the local clock, s."""
    renewed: str = ""
    """What changes with each renewal. Not compared with any clock."""
    transitions: str = ""
    """What changes whenever a replica acquires it."""

    @property
    def free_at(self) -> float:
        """When it may be acquired if nothing changes, by the local clock, s."""
        released = not self.holder and self.duration <= RELEASED_SECONDS
        return self.since if released else self.since + self.duration


def observe(
    bodies: Mapping[int, Mapping[str, Any]],
    before: Mapping[int, ShardLease] | None,
    *,
    me: str,
    terms: float,
    count: int,
    now: float,
) -> dict[int, ShardLease]:
    """`bodies`: the Leases that exist, by shard. `before`: None at the first read: a Lease in the name of this replica
    is then of a process that has ended, such as its container before a restart. `terms`: duration of a Lease that does
    not exist: it may have been deleted while someone leads, s."""
    known = before or {}
    found = {
        shard: _since(_lease(bodies.get(shard, {}), terms), known.get(shard), now)
        for shard in (*range(count), *(shard for shard in bodies if shard >= count))
    }
    if before is None:
        for shard, lease in found.items():
            if lease.holder == me:
                found[shard] = dataclasses.replace(lease, since=float("-inf"))
    return found


def _lease(body: Mapping[str, Any], terms: float) -> ShardLease:
    spec, annotations = body.get("spec") or {}, (body.get("metadata") or {}).get("annotations") or {}
    count = str(annotations.get(SHARDS_ANNOTATION, "1"))
    return ShardLease(
        holder=str(spec.get("holderIdentity") or ""),
        # Anyone may have written thousands of digits.
        count=int(count) if len(count) <= MOST_DIGITS and count.isascii() and count.isdecimal() else 0,
        wanted_by=str(annotations.get(WANTED_ANNOTATION, "")),
        duration=min(LONGEST_LEASE, float(spec.get("leaseDurationSeconds") or terms)),
        since=0.0,
        renewed=str(spec.get("renewTime")),
        transitions=str(spec.get("leaseTransitions")),
    )


def _since(lease: ShardLease, before: ShardLease | None, now: float) -> ShardLease:
    """That another replica asks for it is no renewal. As long as its holder has it, its number of shards is what it was
    when the holder acquired it: another one that someone has written there says nothing."""
    if before is None:
        return dataclasses.replace(lease, since=now)
    if (lease.holder, lease.transitions) == (before.holder, before.transitions):
        lease = dataclasses.replace(lease, count=before.count)
    same = dataclasses.replace(lease, wanted_by=before.wanted_by, since=before.since) == before
    return dataclasses.replace(lease, since=before.since if same else now)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """About the Leases of shards."""

    reason: str
    acquire: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    ask_for: int | None = None
    may_act: bool = True
    """On all shards whose Leases were held when they were read; otherwise only on those it acts on already."""
    look_at: float = float("inf")
    """When a Lease may be acquired that cannot be yet, by the local clock, s."""


def decide(
    seen: Mapping[int, ShardLease],
    *,
    me: str,
    count: int,
    held: Collection[int],
    acting: Collection[int],
    now: float,
    turn: float,
) -> Decision:
    """`held`: the shards whose Leases this replica holds, `acting`: those of them that it acts on. `turn`: how long a
    released Lease is left to the one that has asked for it, s."""
    live = {shard: lease for shard, lease in seen.items() if lease.holder and now <= lease.free_at}
    others = {shard: lease for shard, lease in live.items() if lease.count != count and shard not in held}
    if others:
        return _divided(others, count, held, acting)
    free = {shard: _free_at(lease, me, turn) for shard, lease in seen.items() if shard < count and shard not in held}
    acquire = tuple(shard for shard, at in sorted(free.items()) if at < now)
    if 0 not in held and seen[0].count != count:
        acquire = tuple(shard for shard in acquire if shard == 0)  # whose Lease says how many shards there are
    given = _asked_for(seen, me, held, live)
    return Decision(
        reason=_of_holders(seen, me, count, held, acquire, given),
        acquire=acquire,
        release=given,
        ask_for=None if acquire or given else _to_ask_for(live, me, held),
        look_at=min((at for at in free.values() if at >= now), default=float("inf")),
    )


def _divided(others: Mapping[int, ShardLease], count: int, held: Collection[int], acting: Collection[int]) -> Decision:
    shard, other = min(others.items())
    release = held if shard == 0 else [number for number in held if number and number not in acting]
    return Decision(
        reason=f"{other.holder} leads shard {shard} of {other.count}, and this replica has {count} shards: it waits "
        "until all replicas with another number have stopped",
        release=tuple(sorted(release)),
        may_act=False,
    )


def _free_at(lease: ShardLease, me: str, turn: float) -> float:
    asked = not lease.holder and lease.wanted_by not in ("", me)
    return lease.free_at + (turn if asked else 0.0)


def _counts(live: Mapping[int, ShardLease], me: str, held: Collection[int]) -> collections.Counter[str]:
    """By replica, the number of Leases that it holds."""
    counts = collections.Counter(lease.holder for shard, lease in live.items() if shard not in held)
    counts[me] = len(held)
    return counts


def _asked_for(
    seen: Mapping[int, ShardLease], me: str, held: Collection[int], live: Mapping[int, ShardLease]
) -> tuple[int, ...]:
    """One at a time: the others have a leader meanwhile."""
    counts = _counts(live, me, held)
    for shard in sorted(held):
        asking = seen[shard].wanted_by if shard in seen else ""
        if asking not in ("", me) and len(held) - counts[asking] >= 2:
            return (shard,)
    return ()


def _to_ask_for(live: Mapping[int, ShardLease], me: str, held: Collection[int]) -> int | None:
    counts = _counts(live, me, held)
    richer = {holder for holder, number in counts.items() if number - len(held) >= 2}
    if any(lease.wanted_by == me and lease.holder in richer for lease in live.values()):
        return None
    for holder, most in counts.most_common(1):
        shards = sorted(shard for shard, lease in live.items() if lease.holder == holder and shard not in held)
        if holder != me and most - len(held) >= 2:
            return min(shards, key=lambda shard: (bool(live[shard].wanted_by), -shard))
    return None


def _of_holders(
    seen: Mapping[int, ShardLease],
    me: str,
    count: int,
    held: Collection[int],
    acquire: Iterable[int],
    given: Iterable[int],
) -> str:
    if acquire:
        return f"shards {_listed(acquire)} of {count} are free"
    if given:
        return f"shard {_listed(given)} is asked for by {seen[next(iter(given))].wanted_by}, which has fewer"
    holders = ", ".join(sorted({lease.holder for lease in seen.values() if lease.holder not in ("", me)}))
    return f"holds {len(held)} of {count} shards" + (f"; others: {holders}" if holders else "")


def _listed(shards: Iterable[int]) -> str:
    return ", ".join(map(str, shards))
