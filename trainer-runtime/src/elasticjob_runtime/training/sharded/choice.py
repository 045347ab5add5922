"""From where a sharded training continues: the newest step of which every shard exists, and who has each. Pure.

All ranks decide on the same data, so they need not agree on the result.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import Fence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One shard in the memory of one agent."""

    rank: int
    """That can read it, now."""
    fence: Fence
    """Of the worker group that took the snapshot."""
    step: int
    shard: int
    """The rank that took it, then."""
    of: int
    """How many ranks there were."""
    copied: bool = False
    """From another member, which may be lost."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    step: int | None
    """Of the snapshot in memory; None: use the newest checkpoint on storage, if there is one."""
    sources: Mapping[int, Held] = dataclasses.field(default_factory=dict)
    """By shard, of all shards of the snapshot."""
    why: str
    """A sentence."""


def choose(held: Sequence[Held], stored: Mapping[Fence, int | None]) -> Choice:
    """The newest snapshot that is complete, unless the newest checkpoint on storage is newer.

    stored: for each fencing token among `held`, the step of the newest checkpoint on storage, -1 if there is none, or
    None if a later group, or another job, has saved there since: then its snapshots do not count.
    """
    notes = []
    for (fence, step, of), found in sorted(_by_snapshot(held).items(), reverse=True):
        durable = stored[fence]
        missing = [shard for shard in range(of) if shard not in found]
        if durable is None:
            notes.append(f"another worker group has saved since step {step} was in memory")
        elif missing:
            notes.append(f"step {step} in memory lacks {_shards(missing)} of {of}")
        elif step < durable:
            notes.append(f"step {step} in memory is older")
        else:
            return Choice(step=step, sources=found, why=_sentence(f"step {step}, from memory{_origins(found)}", notes))
    steps = [step for step in stored.values() if step is not None and step >= 0]
    if not held or not (steps or None in stored.values()):
        return Choice(step=None, why=_sentence("storage", notes or ["memory has no snapshot"]))
    return Choice(step=None, why=_sentence(f"step {max(steps)}, from storage" if steps else "storage", notes))


def _by_snapshot(held: Sequence[Held]) -> dict[tuple[Fence, int, int], dict[int, Held]]:
    """(fence, step, number of shards) -> shard -> who has it. What is where it was made goes before copies."""
    found: dict[tuple[Fence, int, int], dict[int, Held]] = collections.defaultdict(dict)
    for each in sorted(held, key=lambda one: (one.copied, one.rank)):
        found[each.fence, each.step, each.of].setdefault(each.shard, each)
    return found


def _origins(found: Mapping[int, Held]) -> str:
    copied = [shard for shard, each in sorted(found.items()) if each.copied]
    return f"; {_shards(copied)} of {len(found)} from the copy of a neighbour" if copied else ""


def _shards(numbers: Sequence[int]) -> str:
    return f"shard{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _sentence(what: str, notes: Sequence[str]) -> str:
    return f"continuing from {what}" + (f" ({'; '.join(notes)})" if notes else "")
