"""What members tell each other of worker processes that take no step, so that each sees the whole group. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elasticjob_runtime.contract import EvidenceValue, RankEvidenceValue
from elasticjob_runtime.contract.collectives import pack, unpack
from elasticjob_runtime.membership.culprit import Activity, RankEvidence, Stack

CLOCK_SKEW = 5.0
"""s by which the clocks of two machines may differ. What is older than the last step is of an earlier hang."""
MAX_READERS = 64
"""In larger groups, only members whose worker processes do not all wait for others read what the others tell: a
thousand members would read a million values."""


def to_value(
    evidence: Mapping[int, RankEvidence], *, round_number: int, time: float, replica: int | None = None
) -> EvidenceValue:
    """`time`: Unix time, s. `replica`: number of the replica whose ranks they are; None: they are the group's."""
    ranks = {
        str(rank): RankEvidenceValue(
            exited=found.exited,
            state=found.state,
            kernel=found.kernel,
            idle=found.activity.is_none and not found.device,
            collective=found.stack.collective if found.stack is not None else None,
            place=found.stack.place if found.stack is not None else "",
            accelerator=found.accelerator,
            resends=[list(pair) for pair in sorted(found.resends)],
            collectives=pack(found.calls) if found.calls is not None else None,
        )
        for rank, found in evidence.items()
    }
    return EvidenceValue(round=round_number, time=time, ranks=ranks, replica=replica)


def of_group(
    values: Iterable[EvidenceValue], *, round_number: int, since: float, replica: int | None = None
) -> dict[int, RankEvidence]:
    """By rank, of this round and this replica, and not older than the last step, at `since` (Unix time, s)."""
    current = [
        value
        for value in values
        if value.round == round_number and value.replica == replica and value.time >= since - CLOCK_SKEW
    ]
    return {int(rank): _evidence(found) for value in current for rank, found in value.ranks.items()}


def _evidence(value: RankEvidenceValue) -> RankEvidence:
    return RankEvidence(
        exited=value.exited,
        state=value.state,
        kernel=value.kernel,
        activity=Activity() if value.idle else Activity(cpu_ms=1_000_000),
        stack=Stack(collective=value.collective, place=value.place) if value.collective is not None else None,
        accelerator=value.accelerator,
        resends=frozenset((pair[0], pair[1]) for pair in value.resends if len(pair) == 2),
        calls=unpack(value.collectives) if value.collectives is not None else None,
    )


def reads(own: Mapping[int, RankEvidence], members: int) -> bool:
    """Whether a member reads what the others tell."""
    return members <= MAX_READERS or not all(found.waits_in for found in own.values())
