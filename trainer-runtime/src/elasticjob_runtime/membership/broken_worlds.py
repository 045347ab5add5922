"""Worlds that break again and again without a step between, though all members answer each other: on the way between
two of them something carries small messages, and not those of a step. Pure.

Another plan in place would break too. So this counts as a failure of the workers, which restart, and names the members
that have lost each other. If a member is named again later, the others go on without it: its agent exits, so that
another one takes its place, elsewhere if possible.
"""

from __future__ import annotations

import dataclasses
import re

from elasticjob_runtime.contract import FailureValue, PlanReason
from elasticjob_runtime.membership.eligibility import join_names, ranks_of
from elasticjob_runtime.membership.view import Member, Plan, View

MAX_BROKEN = 5
"""Plans in a row. More: a network that recovers after a few seconds costs no restart. Fewer: less time is lost if it
does not."""

BROKEN = "WorldsBroken"
"""Failure reason."""

_ADDRESS = re.compile(r"\[([0-9A-Fa-f.:%]+)\]:\d+")
"""Of the other side, in gloo's errors."""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokenWorlds:
    failure: FailureValue
    """What they count as."""
    suspects: tuple[str, ...]
    """Two members that have lost each other, or one; empty: not known."""

    def again(self, view: View, plan: Plan) -> Member | None:
        """The member that an earlier failure of this kind named, too. Of two, the one with the higher rank; None: there
        is none."""
        ranks, members = ranks_of(plan), view.store.members
        known = [name for name in self.suspects if name in plan.value.suspects and name in ranks and name in members]
        return members[max(known, key=lambda name: ranks[name].group_rank)] if known else None


def broken_plans(view: View, plan: Plan, reason: PlanReason) -> int:
    """How many plans in a row have broken when the next one is made for `reason`."""
    if not plan.value.in_place or view.stepped is None or reason is PlanReason.WORKER_FAILED:
        return 0
    return (plan.value.broken if view.stepped < plan.round else 0) + (reason is PlanReason.START)


def too_many_broken(view: View, plan: Plan, reason: PlanReason) -> BrokenWorlds | None:
    """None: so far, others may help."""
    count = broken_plans(view, plan, reason)
    if reason is not PlanReason.START or count < MAX_BROKEN:
        return None
    who, suspects, by = _lost_each_other(view, plan)
    message = f"{count} worlds in a row broke without a step, though all members answer: {who}"
    rank = ranks_of(plan)[by].group_rank * plan.value.nproc
    failure = FailureValue(
        member=by, round=plan.round, rank=rank, local_rank=0, exit_code=1, reason=BROKEN, message=message
    )
    return BrokenWorlds(failure, suspects)


def _lost_each_other(view: View, plan: Plan) -> tuple[str, tuple[str, ...], str]:
    """Who has lost whom, as far as their errors say: in words, the suspects, and the member to report. Pairs that agree
    come first: the others lost their connections because these closed theirs."""
    there = {name: view.store.members[name].value for name in ranks_of(plan) if name in view.store.members}
    errors = {name: value.broken for name, value in sorted(there.items()) if value.round > plan.round}
    lost: dict[str, str] = {}
    for name, error in errors.items():
        found = _ADDRESS.search(error)
        peers = [other for other, value in there.items() if found and value.address == found[1] and other != name]
        if len(peers) == 1:
            lost[name] = peers[0]
    for name, peer in lost.items():
        if lost.get(peer) == name:
            return f"{name} and {peer} lost each other ({errors[name]})", (name, peer), name
    if lost:
        shown = [f"{name} lost {peer} ({errors[name]})" for name, peer in list(lost.items())[:3]]
        return "; ".join(shown), next(iter(lost.items())), next(iter(lost))
    by = next(iter(errors), plan.value.leader)
    return f"{join_names(list(errors))} reported {errors.get(by) or 'no cause'}", (), by
