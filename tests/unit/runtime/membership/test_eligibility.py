"""Which members the planner may select, and in which order."""

from __future__ import annotations

from elasticjob_runtime.contract import MemberState
from elasticjob_runtime.membership.eligibility import eligible_members

from tests.unit.runtime.membership.builders import answers, make_member, make_plan, make_view, members

LEAVING = {"state": MemberState.LEAVING}
WARMING = {"state": MemberState.WARMING}


def test_survivors_keep_their_rank_order_and_joiners_follow_by_name() -> None:
    view = make_view(there=members("abcde", d={"create": 1}), plan=make_plan("ca", me="a"))
    assert [member.name for member in eligible_members(view)] == ["c", "a", "b", "d", "e"]


def test_worker_pods_join_in_the_order_of_their_indices() -> None:
    pods = ["job-worker-10-b2c3d", "job-worker-9-zzzzz", "job-worker-2-55555"]
    view = make_view(there={name: make_member(name) for name in pods})
    assert [member.name for member in eligible_members(view)] == list(reversed(pods))


def test_leaving_importing_and_silent_members_are_not_eligible() -> None:
    there = members("abcd", b=LEAVING, c={"state": MemberState.WARMING})
    view = make_view(there=there, probes=answers(silent="d"))
    assert [member.name for member in eligible_members(view)] == ["a"]
