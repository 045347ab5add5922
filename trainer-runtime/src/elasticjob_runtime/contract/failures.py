"""Which of several failures came first, and which rank is to blame. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from elasticjob_runtime.contract.collectives import first_difference, unpack
from elasticjob_runtime.contract.reports import MISMATCH, PEER_LOST, FailureValue

ABORTED = -6
"""Exit code of a process that SIGABRT ended: gloo and NCCL end theirs so, because of what another rank did."""


def first_failure(failures: Iterable[FailureValue]) -> FailureValue:
    """The earliest failure, preferring causes over lost peers: the peers of a failed worker fail too, a little later.
    Times come from different clocks, which are close enough on one network.

    Where the others may have failed because one of them called another collective, the one that differs is to blame,
    whose own end may have come last.
    """
    known = sorted(failures, key=lambda failure: (failure.reason == PEER_LOST, failure.time))
    difference = None
    if may_follow_from_another(known[0]):
        difference = first_difference({one.rank: unpack(one.collectives) for one in known if one.collectives})
    if difference is None:
        return known[0]
    blamed = next(failure for failure in known if failure.rank in difference.ranks)
    return dataclasses.replace(blamed, reason=MISMATCH, message=difference.why)


def may_follow_from_another(failure: FailureValue) -> bool:
    """Whether another worker process may be the cause, whose own failure becomes known a moment later."""
    return failure.reason in (PEER_LOST, MISMATCH) or failure.exit_code == ABORTED
