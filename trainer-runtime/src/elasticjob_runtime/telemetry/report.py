"""What a worker tells its agent of its start and its training."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a worker of any rank said of its start or its training."""

    rank: int
    round: int
    """0: it does not know."""
    at: float
    """Unix time, s."""
    phase: str
    """fork, connect, restore, first-step, checkpoint; `step`: a step is done; `pause`: none is to be expected for a
    while."""
    began: float | None = None
    step: int | None = None
    seconds: float = 0.0
    """Of a pause."""
    why: str = ""
    """Of a pause."""
