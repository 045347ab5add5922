"""How fast the plans of a run may follow one another. Pure.

Each plan costs the store a little for each member. If members of a large run are lost one after the other, or come and
go, that would go on without a pause, and slow the other runs on the same etcd. So the first few plans are made at once,
and further ones, for as long as the run needs so many, at a limited rate. Each then takes in all that has changed.
"""

from __future__ import annotations

from elasticjob_runtime.membership.actions import Action, ProposePlan, ProposeStop, Wait
from elasticjob_runtime.membership.view import View

AT_ONCE = 5
"""Plans that may follow one another without a wait."""
MEMBERS_PER_SECOND = 500.0
"""That get a further plan: a run of 100 members gets five in a second, one of 1,000 members a plan every two seconds.
Measured with benchmarks/rendezvous/storm.py."""


def interval(members: int) -> float:
    """Seconds between two plans of a run that has had AT_ONCE of them at once."""
    return members / MEMBERS_PER_SECOND


def next_at(view: View) -> float:
    """When the next plan may be made; 0: at once."""
    plan, times = view.store.plan, view.store.plans_at
    if plan is None or len(times) < AT_ONCE:
        return 0.0
    between = interval(plan.value.size)
    return min(times[-AT_ONCE] + AT_ONCE * between, times[-1] + between)


def longest_wait(view: View) -> float:
    """The most seconds that the planner waits for its turn, if the current plan ends soon."""
    return max(0.0, next_at(view) - (view.store.planned_at or 0.0))


def limit_rate(view: View, action: Action | None, now: float) -> Action | None:
    """`action`, unless it makes a plan, or announces one, too early. What is announced already is not delayed."""
    if not isinstance(action, ProposePlan | ProposeStop) or view.stop is not None or now >= (until := next_at(view)):
        return action
    size = view.store.plan.value.size if view.store.plan else 0
    rate = f"one every {interval(size):g} s for {size} members, after {AT_ONCE} at once"
    return Wait(until=until, reason=f"limiting the rate of plans to {rate}; then {action.reason}")
