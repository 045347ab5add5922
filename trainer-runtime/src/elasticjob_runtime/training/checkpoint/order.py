"""Which state of a training is newest, wherever it is: with a living rank, in the memory of an agent, or in a file.
Pure, and the only place that says so: all ways to load ask `choose`.

Fencing tokens order the groups of one job. Those of different jobs say nothing about each other, and neither do the
clocks of their machines. So each state also says what it continued from: the claim of the directory (see `claims`) that
it comes after, and the last choice of a person (`--use`). See docs/design/0023-memory-snapshots.md.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from elasticjob_runtime.contract import Fence

NO_FENCE = Fence(0, 0, 0)


class Kind(enum.IntEnum):
    """Where a state is. Of two that are equally new, the higher is at hand sooner."""

    STORAGE = 0
    MEMORY = 1
    LIVE = 2
    """A rank that trains, or has trained, with others. This outranks all that is kept."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    step: int
    """-1: there is none."""
    kind: Kind = Kind.STORAGE
    job: str = ""
    """`Writer.owner` of the group that has it; empty: without an agent, or unknown."""
    fence: Fence = NO_FENCE
    """Of that group."""
    claim: int = 0
    """Of a file: under which it was saved. Of memory: of the newest file that was there when its process began."""
    choice: int = 0
    """Unix time of the last choice of a person that it comes from, s; 0: none."""
    evaluation: int = 0
    """The number of the evaluation, after this step, in which a rank is; 0: at the next batch."""


NOTHING = State(step=-1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A state that a rank can read, or a shard of it."""

    rank: int
    state: State
    shard: int = 0
    """The rank that had it when it was taken."""
    of: int = 1
    """How many shards there are."""
    copied: bool = False
    """From another member, which may be lost."""
    unreadable: str = ""
    """Why this rank cannot read it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    state: State
    """NOTHING: there is none."""
    held: tuple[Held, ...] = ()
    """All that are as new and can be read, those at hand first."""
    why: str
    """A sentence."""
    unreadable: str = ""
    """Why no rank can read it; empty: one can."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who has it, in ascending order."""
        return tuple(sorted({part.rank for part in self.held}))

    @property
    def sources(self) -> Mapping[int, Held]:
        """By shard. What is where it was made goes before copies."""
        return _sources(self.held)


def choose(held: Sequence[Held], job: str, *, shared: bool, ranks: int = 1) -> Choice:
    """The newest state of which all shards are there, who has it, and why.

    job: the one that loads; shared: whether all ranks see one directory, so that numbers of claims compare; ranks: how
    many load.
    """

    def newer(one: State, other: State) -> str:
        return why_newer(one, other, job, shared=shared)

    snapshots = _snapshots(held)
    whole = {state: parts for state, parts in snapshots.items() if not _lacking(parts)}
    best = NOTHING
    for state in sorted(whole, key=lambda known: (known.kind, known.claim, known.step)):
        best = best if newer(best, state) else state
    equal = [state for state in whole if not newer(best, state) and not newer(state, best)]
    found = [candidate for state in equal for candidate in whole[state]]
    problems = [
        f"Rank {candidate.rank}: {candidate.unreadable}" if ranks > 1 else candidate.unreadable for candidate in found
    ]
    found = [candidate for candidate in found if not candidate.unreadable]
    if problems and not found:
        return Choice(state=best, why="it cannot be read", unreadable=problems[0])
    found.sort(key=lambda candidate: (-candidate.state.kind, candidate.copied, candidate.rank, candidate.shard))
    notes = [
        f"step {state.step} in memory lacks {_shards(_lacking(parts))} of {parts[0].of}"
        for state, parts in snapshots.items()
        if _lacking(parts) and not newer(best, state)
    ]
    notes += [
        f"not step {state.step} {_PLACES[state.kind]}: {newer(best, state)}"
        for state in whole
        if newer(best, state) and (state.kind > best.kind or state.step > best.step)
    ]
    why = f"continuing from step {best.step}{_source(found, ranks)}" if found else "there is no state to load"
    return Choice(state=best, held=tuple(found), why=why + (f" ({'; '.join(notes)})" if notes else ""))


def why_newer(one: State, other: State, job: str, *, shared: bool) -> str:
    """Why `one` is newer than `other`, the second half of a sentence; empty: it is not. See `choose`."""
    for key, reason in _rules(one, other, job, shared):
        if key(one) != key(other):
            return reason.format(one.step) if key(one) > key(other) else ""
    return ""


def _rules(one: State, other: State, job: str, shared: bool) -> Iterator[tuple[Callable[[State], Any], str]]:
    """The first in which they differ decides."""
    yield lambda state: state.step >= 0, "there is nothing else"
    yield lambda state: state.kind is Kind.LIVE, "step {} is of a running training"
    if shared and one.job != other.job:
        yield lambda state: (state.claim, state.kind), "another job has saved step {} since"
    elif shared and one.kind is other.kind is Kind.STORAGE:
        yield lambda state: state.claim, "step {} was saved later"
    if not shared and one.job != other.job:
        yield lambda state: state.job == job, "step {} is of this job"
    yield lambda state: state.choice, "a person has chosen step {} since"
    if one.job == other.job:
        yield lambda state: state.fence, "a later worker group has saved step {}"
    yield lambda state: state.step, "step {} is newer"
    yield lambda state: state.job, "it is of another job"
    # After the same step, the script may have changed its values in the evaluations that are over.
    yield lambda state: (state.evaluation == 0, state.evaluation), "it is further"


def _snapshots(held: Sequence[Held]) -> dict[State, list[Held]]:
    """Who has each state. Of what is in memory, the shards may name different claims: the latest counts."""
    found: dict[tuple[State, int], list[Held]] = collections.defaultdict(list)
    for candidate in held:
        if candidate.state.step >= 0:
            in_memory = candidate.state.kind is Kind.MEMORY
            # Ranks may have loaded something else besides, and so know of other choices.
            found[
                dataclasses.replace(candidate.state, claim=0, choice=0) if in_memory else candidate.state, candidate.of
            ].append(candidate)
    newest = [
        max((part.state for part in parts), key=lambda state: (state.claim, state.choice)) for parts in found.values()
    ]
    return dict(zip(newest, found.values(), strict=True))


def _lacking(parts: Sequence[Held]) -> list[int]:
    """The shards that no rank has."""
    return sorted(set(range(parts[0].of)) - {part.shard for part in parts})


_PLACES = {Kind.STORAGE: "on storage", Kind.MEMORY: "in memory", Kind.LIVE: "of a running training"}
_SOURCES = {Kind.STORAGE: ", from storage", Kind.MEMORY: ", from memory", Kind.LIVE: " of the running training"}


def _source(held: Sequence[Held], ranks: int) -> str:
    """Where it comes from. held: see `Choice`."""
    source = _SOURCES[held[0].state.kind]
    copied = [shard for shard, source in sorted(_sources(held).items()) if source.copied]
    if copied:
        source += f"; {_shards(copied)} of {held[0].of} from the copy of a neighbour"
    lacking = sorted(set(range(ranks)) - {part.rank for part in held})
    if lacking:
        source += f"; rank {held[0].rank} sends it to those that lack it: {', '.join(map(str, lacking))}"
    return source


def _sources(held: Sequence[Held]) -> dict[int, Held]:
    same = [source for source in held if (source.state.kind, source.of) == (held[0].state.kind, held[0].of)]
    return {source.shard: source for source in reversed(same)}


def _shards(numbers: Sequence[int]) -> str:
    return f"shard{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
