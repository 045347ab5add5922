"""The collectives that ranks have begun, as torch's flight recorder lists them, and where ranks differ. Pure.

A recorder is the script's to fill, so nothing in it is trusted. Sends and receives are not looked at: they differ from
rank to rank.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

SHARED_GROUPS, SHARED_CALLS = 4, 8
"""Process groups, and the newest collectives of each, that one rank shares with the others."""
MAX_TEXT = 120
"""Characters of a collective's description that are kept."""

DEFAULT_GROUP = "default_pg"
"""torch's name for the group of all ranks."""

EQUAL_SIZES = frozenset(("all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "_reduce_scatter_base"))
"""Collectives to which all ranks must give tensors of the same sizes. Of the others, only the operation is compared:
`all_to_all` and `scatter` may differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A collective that a rank has begun."""

    number: int
    """Of the collectives of its process group, from 1 on."""
    what: str
    """The operation, with sizes and types where they must be equal on all ranks: `all_reduce [[4]] Float`."""
    over: bool
    line: str = ""
    """Where the script calls it, if that is known: `train.py:31`."""

    @property
    def operation(self) -> str:
        return self.what.partition(" ")[0]

    def __str__(self) -> str:
        return f"{self.what} at {self.line}" if self.line else self.what


Calls = Mapping[str, Sequence[Call]]
"""Of one rank: by process group, in the order of their numbers."""


def calls_of(dump: Any, since_ns: int = 0) -> dict[str, list[Call]]:
    """Of a flight recorder's content, as torch writes it to JSON and to pickles. Raises ValueError. `since_ns`: Unix
    time, ns; what was begun before is of an earlier group, in processes that have continued in place.

    >>> calls_of({"entries": [{"process_group": ["0", "default_pg"], "collective_seq_id": 1, "is_p2p": False,
    ...     "profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"], "retired": True}]})
    {'default_pg': [Call(number=1, what='all_reduce [[4]] Float', over=True, line='')]}
    """
    found: dict[str, dict[int, Call]] = collections.defaultdict(dict)
    try:
        for entry in dump["entries"]:
            if entry["is_p2p"] or int(entry.get("time_created_ns", since_ns)) < since_ns:
                continue
            group, call = _group_of(entry["process_group"]), _call_of(entry)
            calls = found[group]
            if calls and call.number < next(reversed(calls)):
                calls.clear()  # the group was made again
            calls[call.number] = call
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a flight recorder: {error!r}") from error
    return {group: list(calls.values()) for group, calls in found.items()}


def _group_of(names: Sequence[str]) -> str:
    name, description = str(names[0])[:MAX_TEXT], str(names[1])[:MAX_TEXT]
    return description if description == DEFAULT_GROUP else f"{description} {name}"


def _call_of(entry: Mapping[str, Any]) -> Call:
    operation = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    what = operation
    if operation in EQUAL_SIZES and entry["input_sizes"]:
        what = f"{operation} {entry['input_sizes']} {' '.join(map(str, entry['input_dtypes']))}"
    # gloo's `state` is "scheduled" for ever; only `retired` says that a collective is over.
    over = bool(entry["retired"]) or entry.get("state") == "completed"
    return Call(int(entry["collective_seq_id"]), what[:MAX_TEXT].strip(), over, _line_of(entry.get("frames") or []))


def _line_of(frames: Sequence[Mapping[str, Any]]) -> str:
    for frame in frames:
        file = str(frame["filename"])
        if not any(part in file for part in ("/torch/", "/elasticjob_runtime/", "<frozen")):
            return f"{file.rpartition('/')[2]}:{frame['line']}"[:MAX_TEXT]
    return ""


def pack(calls: Calls) -> dict[str, list[list[Any]]]:
    """The newest ones, for a value in etcd."""
    groups = sorted(calls, key=lambda group: (group != DEFAULT_GROUP, group))[:SHARED_GROUPS]
    return {group: [list(dataclasses.astuple(call)) for call in calls[group][-SHARED_CALLS:]] for group in groups}


def unpack(packed: Any) -> dict[str, list[Call]]:
    """What `pack` made; nothing, if it is something else."""
    try:
        return {
            str(group): [Call(int(number), str(what), bool(over), str(line)) for number, what, over, line in calls]
            for group, calls in packed.items()
        }
    except (TypeError, ValueError, AttributeError, OverflowError):
        return {}


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    ranks: tuple[int, ...]
    """Those that do not do what most do; all, if there is no majority."""
    why: str


def first_difference(recorders: Mapping[int, Calls], *, waiting: bool = False) -> Difference | None:
    """The first collective whose operation, sizes or types differ. `recorders`: by rank. `waiting`: in a hang, one that
    is over on all ranks is not what they wait in. Other lines of the script accuse no rank: `if rank == 0` around a
    collective is nothing unusual."""
    for group in sorted({group for calls in recorders.values() for group in calls}):
        known = {rank: {call.number: call for call in calls.get(group, ())} for rank, calls in recorders.items()}
        for number in sorted({number for calls in known.values() for number in calls}):
            there = {rank: calls[number] for rank, calls in sorted(known.items()) if number in calls}
            kinds = {rank: _kind_of(call) for rank, call in there.items()}
            if len(set(kinds.values())) > 1 and not (waiting and all(call.over for call in there.values())):
                return _difference(number, there, kinds)
    return None


def _kind_of(call: Call) -> str:
    """With numbers of elements in place of sizes, because a collective of gloo takes tensors of any shape.

    >>> _kind_of(Call(1, "all_reduce [[2, 3], []] Float", over=True))
    'all_reduce [6, 1] Float'
    """
    return re.sub(r"\[([\d, ]*)\]", lambda found: str(math.prod(map(int, re.findall(r"\d+", found[1])))), call.what)


def _difference(number: int, there: Mapping[int, Call], kinds: Mapping[int, str]) -> Difference:
    usual, count = collections.Counter(kinds.values()).most_common(1)[0]
    has_majority = 2 * count > len(there)
    odd = tuple(rank for rank in there if not has_majority or kinds[rank] != usual)
    shown = [*odd, *(rank for rank in there if rank not in odd)]
    first_of = {kinds[rank]: rank for rank in reversed(shown)}
    calls = ", ".join(f"rank {rank} calls {there[rank]}" for rank in shown if first_of[kinds[rank]] == rank)
    doubt = "" if has_majority else "; which of them is wrong is not known"
    return Difference(odd, f"collective {number} differs between ranks: {calls}{doubt}")


@dataclasses.dataclass(frozen=True, slots=True)
class Behind:
    """Ranks that have not begun a collective in which others wait."""

    ranks: tuple[int, ...]
    call: Call
    waiting: tuple[int, ...]


def behind(recorders: Mapping[int, Calls]) -> Behind | None:
    """`recorders`: by rank. A rank that waits in another collective itself is not behind."""
    waits = {rank for rank, calls in recorders.items() if open_call(calls) is not None}
    for group in sorted({group for calls in recorders.values() for group in calls}):
        begun = {rank: next((c for c in calls.get(group, ()) if not c.over), None) for rank, calls in recorders.items()}
        opened = {rank: call for rank, call in sorted(begun.items()) if call is not None}
        if not opened:
            continue
        first = min(opened.values(), key=lambda call: call.number)
        ranks = tuple(
            rank
            for rank, calls in sorted(recorders.items())
            if rank not in waits
            and (group == DEFAULT_GROUP or group in calls)
            and max((call.number for call in calls.get(group, ())), default=0) < first.number
        )
        if ranks:
            return Behind(ranks, first, tuple(rank for rank, call in opened.items() if call.number == first.number))
    return None


def open_call(calls: Calls) -> Call | None:
    """One in which the rank waits."""
    return next((call for group in sorted(calls) for call in calls[group] if not call.over), None)
