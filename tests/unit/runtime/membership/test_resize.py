"""When the planner makes the group larger or smaller."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue
from elasticjob_runtime.membership.planner import next_plan

from tests.unit.runtime.membership.builders import NOW, Case, answers, describe, make_plan, make_view, members

PLAN = make_plan("abc")
TWO = make_plan("ab")
WARMING = {"state": MemberState.WARMING}


RESIZE = {
    "a joiner is probed before it is planned": Case(make_view(plan=TWO), "probe c"),
    "a joiner gets the last rank": Case(
        make_view(there=members("abc", c={"create": 1}), plan=TWO, probes=answers("c")),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "a join costs no restart": Case(
        make_view(plan=make_plan("ab", restarts=3), probes=answers("c")), "plan 2: a b c, MemberJoined, 3 restarts"
    ),
    "joins are batched": Case(
        make_view(there=members("abc", c={"seen_at": NOW - 0.25}), plan=TWO, spec=SpecValue(min=2, max=5)),
        "wait 0.75 s",
    ),
    "joins are batched from when members are ready, not from when they registered": Case(
        make_view(
            there=members("abc", c={"seen_at": NOW - 5, "ready_at": NOW - 0.25}), plan=TWO, spec=SpecValue(min=2, max=5)
        ),
        "wait 0.75 s",
    ),
    "a joiner is ready, another still imports: one round for both": Case(
        make_view(there=members("abcd", c={"ready_at": NOW - 1}, d=WARMING), plan=TWO, spec=SpecValue(min=2, max=5)),
        "wait 2 s",
    ),
    "a joiner imports for too long: the other joins": Case(
        make_view(
            there=members("abcd", c={"ready_at": NOW - 3}, d=WARMING),
            plan=TWO,
            spec=SpecValue(min=2, max=5),
            probes=answers("c"),
        ),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "all wanted joiners are ready: plan at once": Case(
        make_view(
            there=members("abcd", c={"ready_at": NOW - 0.25}, d={"ready_at": NOW}),
            plan=TWO,
            spec=SpecValue(min=2, max=4),
            probes=answers("cd"),
        ),
        "plan 2: a b c d, MemberJoined, 0 restarts",
    ),
    "importing members that allow no larger size are not waited for": Case(
        make_view(
            there=members("abcde", d=WARMING, e=WARMING),
            plan=TWO,
            spec=SpecValue(min=2, max=8, allowed=[2, 3, 8]),
            probes=answers("c"),
        ),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "an importing member that is incompatible or leaving is not waited for": Case(
        make_view(
            there=members("abcde", c={"ready_at": NOW - 1}, d={**WARMING, "nproc": 2}, e=WARMING),
            plan=TWO,
            spec=SpecValue(min=2, max=5, draining=["e"]),
            probes=answers("c"),
        ),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "after a loss, importing members are not waited for": Case(
        make_view(there=members("abd", d=WARMING), plan=PLAN, probes=answers("b")),
        "plan 2: a b, MemberLost, 0 restarts",
    ),
    "joins are not batched when all wanted members are there": Case(
        make_view(there=members("abc", c={"seen_at": NOW - 0.25}), plan=TWO, probes=answers("c")),
        "plan 2: a b c, MemberJoined, 0 restarts",
    ),
    "allowed sizes: joins are not batched at the largest allowed size": Case(
        make_view(
            there=members("abcd", d={"seen_at": NOW - 0.25}),
            plan=TWO,
            spec=SpecValue(min=2, max=5, allowed=[2, 4]),
            probes=answers("cd"),
        ),
        "plan 2: a b c d, MemberJoined, 0 restarts",
    ),
    "allowed sizes: a joiner that allows no larger size changes nothing": Case(
        make_view(plan=TWO, spec=SpecValue(min=2, max=4, allowed=[2, 4])), "nothing"
    ),
    "a joiner that is still importing changes nothing": Case(
        make_view(there=members("abc", c={"state": MemberState.WARMING}), plan=TWO), "nothing"
    ),
    "a joiner that did not respond is probed again later": Case(
        make_view(plan=TWO, probes=answers("c", ago=0.5, reachable=False)), "wait 0.5 s"
    ),
    "a joiner that did not respond for a while is probed again": Case(
        make_view(plan=TWO, probes=answers("c", ago=1.5, reachable=False)), "probe c"
    ),
    "a joiner without a peer port is planned without a probe": Case(
        make_view(there=members("abc", c={"peer_port": 0}), plan=TWO), "plan 2: a b c, MemberJoined, 0 restarts"
    ),
    "a member above the maximum is a spare": Case(make_view(there="abcd", plan=PLAN), "nothing"),
    "fewer members are wanted: the last ranks are removed": Case(
        make_view(plan=PLAN, spec=SpecValue(min=2, max=3, wanted=2)), "plan 2: a b, Resized, 0 restarts"
    ),
    "fewer members are wanted, and the operator names the one that goes": Case(
        make_view(plan=PLAN, spec=SpecValue(min=2, max=3, wanted=2, draining=["a"])),
        "plan 2: b c, MemberLeft, 0 restarts",
    ),
    "more members are wanted: a spare joins": Case(
        make_view(there="abcd", plan=PLAN, spec=SpecValue(min=2, max=4, wanted=4), probes=answers("d")),
        "plan 2: a b c d, MemberJoined, 0 restarts",
    ),
    "an incompatible member does not join": Case(make_view(there=members("abc", c={"nproc": 2}), plan=TWO), "nothing"),
    "a minimum above the current size changes nothing": Case(
        make_view(plan=PLAN, spec=SpecValue(min=4, max=5)), "nothing"
    ),
}


@pytest.mark.parametrize("name", RESIZE)
def test_the_planner_resizes_the_group(name: str) -> None:
    assert describe(next_plan(RESIZE[name].view, NOW)) == RESIZE[name].does
