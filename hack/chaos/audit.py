"""Audits a ledger: was anything lost, was there one history, and did only one group train at a time? Pure.

Fencing tokens order the groups, or else the times at which they began. A group must resume from the newest checkpoint
of the newest group that had committed one: from nothing older (a committed step would be missing), and from no older
group (its work would be restored over a newer one's). If both rules hold, there is one history.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from hack.chaos.ledger import SAMPLES as ALL_SAMPLES
from hack.chaos.ledger import Group, Save


@dataclasses.dataclass(frozen=True)
class Finding:
    """A broken promise, found in the ledger."""

    kind: str
    """One of the promises below."""
    text: str
    at: float = 0.0
    """When it happened, s of the machine's monotonic clock."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


MISSING = "committed step missing"
OLDER_OVER_NEWER = "older group's work restored over a newer one's"
UNKNOWN = "restored what was never saved"
SAMPLES = "samples"
TWO_GROUPS = "two groups trained at once"
EXTRA_COMMIT = "older group committed while a newer one trained"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlap:
    """An older group that was still training when a newer one had begun."""

    older: Group
    newer: Group
    seconds: float
    """From the newer one's first step to the older one's last."""
    steps: int
    """Steps that the older one completed in that time."""
    commits: int
    """Checkpoints that the older one began and committed after the newer one's first."""
    split: int
    """Steps of which both have committed a checkpoint, with different content."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is promised in addition to one history."""

    together: float = 3.0
    """Seconds for which an older group may continue while a newer one trains."""
    fenced: bool = True
    """Checkpoints are saved by save_checkpoint: an older group commits none once a newer one has."""
    samples: int = ALL_SAMPLES
    """Samples in an epoch of the data."""


def audit(groups: Sequence[Group], limits: Limits = Limits()) -> list[Finding]:
    """All findings, in the order in which they happened. `groups`: as groups_of returns them."""
    found = [*restores(groups), *samples(groups, limits.samples)]
    for overlap in overlaps(groups):
        at, names = overlap.newer.first_done, f"{overlap.older.name} together with {overlap.newer.name}"
        if overlap.seconds > limits.together:
            text = (
                f"{names}: {overlap.seconds:.1f} s, {overlap.steps} steps, {overlap.commits} checkpoints "
                f"({overlap.split} differ)"
            )
            found.append(Finding(TWO_GROUPS, text, at))
        if overlap.commits and limits.fenced:
            found.append(
                Finding(EXTRA_COMMIT, f"{names}: {overlap.commits} checkpoints, {overlap.split} steps differ", at)
            )
    return sorted(found, key=lambda finding: finding.at)


def restores(groups: Sequence[Group]) -> list[Finding]:
    """Every group must resume from the newest checkpoint of the newest group that had committed one."""
    found = []
    for group in groups:
        step, digest = group.restored
        writer = _writer(groups, group)
        newest = _newest_commit(groups, group.began)
        if writer is None and step:
            found.append(Finding(UNKNOWN, f"{group.name} restored step {step} ({digest})", group.began))
        elif newest is not None:
            owner, save = newest
            instead = f"though {owner.name} had committed step {save.step}"
            if writer is not None and writer.order < owner.order:
                found.append(
                    Finding(
                        OLDER_OVER_NEWER, f"{group.name} restored step {step} of {writer.name}, {instead}", group.began
                    )
                )
            elif step < save.step:
                found.append(Finding(MISSING, f"{group.name} restored step {step}, {instead}", group.began))
    return found


def chain(groups: Sequence[Group]) -> list[tuple[Group, int]]:
    """The surviving history, oldest first: each group with its last step that counts."""
    trained = [group for group in groups if group.done]
    if not trained:
        return []
    group = max(trained, key=lambda item: item.order)
    found = [(group, group.done[-1][0])]
    while (writer := _writer(groups, group)) is not None:
        found.append((writer, group.restored[0]))
        group = writer
    return found[::-1]


def samples(groups: Sequence[Group], total: int) -> list[Finding]:
    """In each epoch of the surviving history, no sample is repeated; and none is missing from a completed epoch."""
    seen: dict[int, Counter[int]] = {}
    found = []
    expected = 1
    for group, last in chain(groups):
        if group.restored[0] + 1 != expected:
            found.append(
                Finding(SAMPLES, f"steps {expected} to {group.restored[0]} are in no group's history", group.began)
            )
        per_step = [
            work for process in group.processes for work in process.work if group.restored[0] < work.step <= last
        ]
        for work in per_step:
            seen.setdefault(work.epoch, Counter()).update(work.samples)
        expected = last + 1
    for epoch, counted in sorted(seen.items()):
        twice = [sample for sample, count in counted.items() if count > 1]
        if twice:
            found.append(Finding(SAMPLES, f"epoch {epoch} of the data: {len(twice)} samples were repeated"))
        if epoch != max(seen) and len(counted) < total:
            found.append(Finding(SAMPLES, f"epoch {epoch} of the data: {total - len(counted)} samples are missing"))
    return found


def overlaps(groups: Sequence[Group]) -> list[Overlap]:
    """Pairs of groups of which the older one completed steps after the newer one's first."""
    found = []
    for newer in groups:
        for older in groups:
            later_steps = [at for _, at, *_ in older.done if at > newer.first_done]
            if older.order >= newer.order or not later_steps:
                continue
            first = min((save.committed for save in newer.saves if save.committed is not None), default=None)
            commits = [save for save in older.committed if first is not None and save.began > first]
            seconds = older.last_done - max(newer.first_done, older.first_done)
            split = _split(older.saves, newer.saves)
            found.append(
                Overlap(
                    older=older, newer=newer, seconds=seconds, steps=len(later_steps), commits=len(commits), split=split
                )
            )
    return found


def longest_pause(groups: Iterable[Group], since: float, until: float) -> float:
    """The longest time between two completed steps of any group, s, among pauses that overlap [since, until]."""
    moments = sorted(at for group in groups for _, at, *_ in group.done)
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments) if later >= since and earlier <= until]
    return max(pauses, default=0.0)


def steps_redone(groups: Sequence[Group], since: float) -> int:
    """Steps that were completed and then trained again, because the restored checkpoint did not include them."""
    lost = 0
    for index, group in enumerate(groups):
        if group.began >= since and index:
            before = max((step for step, at, *_ in groups[index - 1].done if at <= group.began), default=0)
            lost += max(0, before - group.restored[0])
    return lost


def _writer(groups: Sequence[Group], reader: Group) -> Group | None:
    """The newest of the groups that saved, or were about to save, the state that the reader restored."""
    wrote = [
        group
        for group in groups
        if group.began < reader.began and any((save.step, save.digest) == reader.restored for save in group.saves)
    ]
    return max(wrote, key=lambda group: group.order, default=None)


def _newest_commit(groups: Sequence[Group], before: float) -> tuple[Group, Save] | None:
    """The newest group that had committed a checkpoint by then, and its newest checkpoint."""
    committed = [(group, save) for group in groups for save in group.committed if (save.committed or 0.0) < before]
    return max(committed, key=lambda item: (item[0].order, item[1].step), default=None)


def _split(one: Iterable[Save], other: Iterable[Save]) -> int:
    theirs = {save.step: save.digest for save in other}
    return sum(save.step in theirs and theirs[save.step] != save.digest for save in one)
