"""From where a sharded training continues: the newest step of which every shard exists, and who has each. Pure.

All ranks decide on the same data, so they need not agree on the result.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from elasticjob_runtime.contract import Fence
from elasticjob_runtime.training.checkpoint.order import State, why_older


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
    claim: int = 0
    """See `checkpoint.order.State`."""
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


def choose(held: Sequence[Held], file: State, job: str) -> Choice:
    """The newest snapshot of `job` that is complete, unless `file`, the newest checkpoint on storage, is newer."""
    notes = []
    for (fence, step, of), found in sorted(_by_snapshot(held).items(), reverse=True):
        memory = State(step=step, job=job, fence=fence, claim=max(each.claim for each in found.values()))
        reason = why_older(memory, file)
        missing = [shard for shard in range(of) if shard not in found]
        if missing:
            notes.append(f"step {step} in memory lacks {_shards(missing)} of {of}")
        elif reason:
            notes.append(f"not step {step} in memory: {reason}")
        else:
            return Choice(step=step, sources=found, why=_sentence(f"step {step}, from memory{_origins(found)}", notes))
    what = f"step {file.step}, from storage" if file.step >= 0 else "storage"
    return Choice(step=None, why=_sentence(what, notes or ["memory has no snapshot"]))


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
