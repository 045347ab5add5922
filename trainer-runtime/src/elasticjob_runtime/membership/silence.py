"""How long a member may be silent before the others continue without it. Pure.

If they have to restart for that, leaving out a member that was only slow is expensive, so silence must last. In place
it costs two short stops: the member's worker processes wait, and join again when it answers.
"""

from __future__ import annotations

import dataclasses

from elasticjob_runtime.contract import PlanValue


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    heartbeat: float
    """s without a heartbeat after which a neighbour is suspected. Longer: fewer false alarms on a busy machine;
    shorter: earlier detection."""
    answer: float
    """s to wait for the answer to a probe. A live agent answers in about a millisecond, and a dead one's port refuses
    as quickly; only silence takes this long."""


RESTART = Limits(heartbeat=1.0, answer=1.5)
"""With 0.5 s for an answer, a machine with ten processes per core loses live members."""

IN_PLACE = Limits(heartbeat=0.55, answer=0.4)
"""Two heartbeats are missing."""


def limits(plan: PlanValue | None) -> Limits:
    return IN_PLACE if plan is not None and plan.in_place else RESTART
