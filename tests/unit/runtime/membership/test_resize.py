"""When the planner makes the group larger or smaller."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import MemberState, SpecValue
from elasticjob_runtime.membership.planner import next_plan

from tests.unit.runtime.membership.builders import NOW, answers, case, describe, make_plan, members

PLAN = make_plan("abc")
TWO = make_plan("ab")
WARMING = {"state": MemberState.WARMING}


RESIZE = {
    "a joiner is probed before it is planned": case("probe c", plan=TWO),
    "a joiner gets the last rank":
        case("plan 2: a b c, MemberJoined, 0 restarts", there=members("abc", c={"create": 1}), plan=TWO,
            probes=answers("c")),
    "a join costs no restart":
        case("plan 2: a b c, MemberJoined, 3 restarts", plan=make_plan("ab", restarts=3), probes=answers("c")),
    "joins are batched":
        case("wait 0.75 s", there=members("abc", c={"seen_at": NOW - 0.25}), plan=TWO, spec=SpecValue(min=2, max=5)),
    "joins are batched from when members are ready, not from when they registered":
        case("wait 0.75 s", there=members("abc", c={"seen_at": NOW - 5, "ready_at": NOW - 0.25}), plan=TWO,
            spec=SpecValue(min=2, max=5)),
    "a joiner is ready, another still imports: one round for both":
        case("wait 2 s", there=members("abcd", c={"ready_at": NOW - 1}, d=WARMING), plan=TWO,
            spec=SpecValue(min=2, max=5)),
    "a joiner imports for too long: the other joins":
        case("plan 2: a b c, MemberJoined, 0 restarts", there=members("abcd", c={"ready_at": NOW - 3}, d=WARMING),
            plan=TWO, spec=SpecValue(min=2, max=5), probes=answers("c")),
    "all wanted joiners are ready: plan at once":
        case("plan 2: a b c d, MemberJoined, 0 restarts",
            there=members("abcd", c={"ready_at": NOW - 0.25}, d={"ready_at": NOW}), plan=TWO,
            spec=SpecValue(min=2, max=4), probes=answers("cd")),
    "importing members that allow no larger size are not waited for":
        case("plan 2: a b c, MemberJoined, 0 restarts", there=members("abcde", d=WARMING, e=WARMING), plan=TWO,
            spec=SpecValue(min=2, max=8, allowed=[2, 3, 8]), probes=answers("c")),
    "an importing member that is incompatible or leaving is not waited for":
        case("plan 2: a b c, MemberJoined, 0 restarts",
            there=members("abcde", c={"ready_at": NOW - 1}, d={**WARMING, "nproc": 2}, e=WARMING), plan=TWO,
            spec=SpecValue(min=2, max=5, draining=["e"]), probes=answers("c")),
    "after a loss, importing members are not waited for":
        case("plan 2: a b, MemberLost, 0 restarts", there=members("abd", d=WARMING), plan=PLAN, probes=answers("b")),
    "joins are not batched when all wanted members are there":
        case("plan 2: a b c, MemberJoined, 0 restarts", there=members("abc", c={"seen_at": NOW - 0.25}), plan=TWO,
            probes=answers("c")),
    "allowed sizes: joins are not batched at the largest allowed size":
        case("plan 2: a b c d, MemberJoined, 0 restarts", there=members("abcd", d={"seen_at": NOW - 0.25}), plan=TWO,
            spec=SpecValue(min=2, max=5, allowed=[2, 4]), probes=answers("cd")),
    "allowed sizes: a joiner that allows no larger size changes nothing":
        case("nothing", plan=TWO, spec=SpecValue(min=2, max=4, allowed=[2, 4])),
    "a joiner that is still importing changes nothing": case("nothing", there=members("abc", c=WARMING), plan=TWO),
    "a joiner that did not respond is probed again later":
        case("wait 0.5 s", plan=TWO, probes=answers(silent="c", ago=0.5)),
    "a joiner that did not respond for a while is probed again":
        case("probe c", plan=TWO, probes=answers(silent="c", ago=1.5)),
    "a joiner without a peer port is planned without a probe":
        case("plan 2: a b c, MemberJoined, 0 restarts", there=members("abc", c={"peer_port": 0}), plan=TWO),
    "a member above the maximum is a spare": case("nothing", there="abcd", plan=PLAN),
    "fewer members are wanted: the last ranks are removed":
        case("plan 2: a b, Resized, 0 restarts", plan=PLAN, spec=SpecValue(min=2, max=3, wanted=2)),
    "fewer members are wanted, and the operator names the one that goes":
        case("plan 2: b c, MemberLeft, 0 restarts", plan=PLAN, spec=SpecValue(min=2, max=3, wanted=2, draining=["a"])),
    "more members are wanted: a spare joins":
        case("plan 2: a b c d, MemberJoined, 0 restarts", there="abcd", plan=PLAN,
            spec=SpecValue(min=2, max=4, wanted=4), probes=answers("d")),
    "an incompatible member does not join": case("nothing", there=members("abc", c={"nproc": 2}), plan=TWO),
    "a minimum above the current size changes nothing": case("nothing", plan=PLAN, spec=SpecValue(min=4, max=5)),
}  # fmt: skip


@pytest.mark.parametrize("name", RESIZE)
def test_the_planner_resizes_the_group(name: str) -> None:
    assert describe(next_plan(RESIZE[name].view, NOW)) == RESIZE[name].does
