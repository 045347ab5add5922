"""The checkpoint folder that all groups share, even across partitions, with the rules of claims.py. Checks that there
is one history."""

from __future__ import annotations

import dataclasses

from elasticjob_runtime.training.checkpoint import claims
from elasticjob_runtime.training.checkpoint.claims import UNCLAIMED, Claim, Found, Listing, Writer

from tests.unit.runtime.simulation.invariants import require

KEPT = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    found: Found
    after: Commit | None
    """What its group had restored, or saved before: its history."""


class Folder:
    def __init__(self) -> None:
        self._claim: Claim = UNCLAIMED
        self._commits: dict[Found, Commit] = {}
        self._newest: Commit | None = None
        """The last commit made under the claim current then: what every group must continue from."""

    def enter(self, writer: Writer) -> Claim | None:
        """The claim to save under; None if the save is rejected."""
        listing = self._listing()
        if claims.rejection(self._claim, writer):
            return None
        if not claims.is_current(self._claim, writer):
            self._claim = claims.next_claim(listing, writer)
        return self._claim

    def check(self, claim: Claim) -> bool:
        """Right before the rename."""
        return self._claim.number == claim.number

    def commit(self, claim: Claim, step: int, after: Commit | None) -> Commit:
        """The rename. A writer that was frozen after its check can still do it."""
        made = Commit(Found(claim.number, step), after)
        before = self._commits.get(made.found)
        require(
            before is None or claim.number < self._claim.number,
            f"{made.found} was committed twice, by two groups of one claim",
        )
        self._commits[made.found] = made
        if self.check(claim):
            if self._newest is not None and self._newest.found.number == claim.number:
                require(
                    after is self._newest,
                    f"{made.found} does not follow {self._newest.found}: two histories under one claim",
                )
            self._newest = made
            for old in claims.valid(self._listing())[KEPT:]:
                del self._commits[old]
        return made

    def restore(self) -> Commit | None:
        history = claims.valid(self._listing())
        found = self._commits[history[0]] if history else None
        require(
            found is self._newest, f"{found and found.found} is restored, and not {self._newest and self._newest.found}"
        )
        return found

    def _listing(self) -> Listing:
        return Listing(self._claim, tuple(self._commits), ())
