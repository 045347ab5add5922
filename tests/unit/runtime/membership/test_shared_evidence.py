"""What a member learns from the others during a hang."""

from __future__ import annotations

from collections.abc import Mapping

from elasticjob_runtime.agent.evidence_exchange import WAIT_SECONDS, EvidenceExchange, Received
from elasticjob_runtime.contract import EvidenceValue, PlanReason, PlanValue
from elasticjob_runtime.contract.collectives import DEFAULT_GROUP, Call
from elasticjob_runtime.membership.culprit import Activity, RankEvidence, Stack, find_culprit
from elasticjob_runtime.membership.shared_evidence import MAX_READERS, of_group, reads, to_value
from elasticjob_runtime.membership.view import Plan

WAITS = RankEvidence(calls={DEFAULT_GROUP: [Call(7, "all_reduce [[7]] Float", over=False)]})
DIFFERS = RankEvidence(calls={DEFAULT_GROUP: [Call(7, "all_reduce [[5]] Float", over=False)]})
SLEEPS = RankEvidence(
    stack=Stack(collective="", place="wait (train.py:7)"), resends=frozenset({("10.0.0.1", "10.0.0.2")}), state="D",
    kernel="percpu_rwsem_wait", accelerator=True, calls={},
)  # fmt: skip
NOW = 1_000_000.0


def told(evidence: Mapping[int, RankEvidence], *, round_number: int = 3, time: float = NOW) -> EvidenceValue:
    return EvidenceValue.from_json(to_value(evidence, round_number=round_number, time=time).to_json())


def test_what_is_told_arrives() -> None:
    busy = RankEvidence(activity=Activity(cpu_ms=900))
    found = of_group([told({0: WAITS, 1: SLEEPS}), told({2: busy})], round_number=3, since=NOW)
    assert (found[0], found[1]) == (WAITS, SLEEPS)
    assert (found[2].does_nothing, found[2].calls) == (False, None)


def test_ranks_of_another_replica_are_other_ranks() -> None:
    other = EvidenceValue.from_json(to_value({0: SLEEPS}, round_number=3, time=NOW, replica=1).to_json())
    own = EvidenceValue.from_json(to_value({1: WAITS}, round_number=3, time=NOW, replica=0).to_json())
    assert of_group([other, own], round_number=3, since=NOW, replica=0) == {1: WAITS}


def test_an_earlier_round_and_an_earlier_hang_do_not_count() -> None:
    values = [told({0: WAITS}, round_number=2), told({1: WAITS}, time=NOW - 60)]
    assert of_group(values, round_number=3, since=NOW) == {}


def test_two_ranks_of_one_member_differ_and_the_other_members_decide_which_is_right() -> None:
    own = {0: WAITS, 1: DIFFERS}
    assert find_culprit(own, whole=False).ranks == (0, 1)
    group = {**of_group([told({2: WAITS, 3: WAITS})], round_number=3, since=NOW), **own}
    assert find_culprit(group, whole=True).ranks == (1,)


def test_in_a_large_group_only_those_that_may_have_to_act_read() -> None:
    assert reads({0: WAITS}, MAX_READERS)
    assert not reads({0: WAITS}, MAX_READERS + 1)
    assert reads({0: WAITS, 1: SLEEPS}, 1000)


class Others:
    """The store, in place of one: what the others have told."""

    def __init__(self, *values: EvidenceValue) -> None:
        self.values = dict(zip("bcd", values, strict=False))
        self.received: list[EvidenceValue] = []

    def exchange(self, value: EvidenceValue, on_all: Received | None) -> None:
        self.received.append(value)
        if on_all is not None:
            on_all(self.values)


def exchange_with(others: Others, size: int) -> EvidenceExchange:
    value = PlanValue(
        round=3, attempt="3.a", reason=PlanReason.START, size=2, world_size=size, master_addr="a", master_port=1,
        leader="a", restart_count=0, nproc=2,
    )  # fmt: skip
    plan = Plan(value=value, mod_revision=1, rank=None)
    return EvidenceExchange(others.exchange, {0: WAITS, 1: DIFFERS}, plan, size, 0.0, 0.0)


def test_a_member_that_knows_all_ranks_does_not_wait() -> None:
    others = Others()
    assert exchange_with(others, 2).tick(0.0) == {0: WAITS, 1: DIFFERS}
    assert others.received == []


def test_a_member_waits_for_those_that_notice_the_hang_later_and_not_for_ever() -> None:
    others = Others()
    exchange = exchange_with(others, 4)
    assert exchange.tick(0.0) is None
    assert exchange.tick(0.5) is None
    assert len(others.received) == 1
    assert (exchange.tick(WAIT_SECONDS) or {}).keys() == {0, 1}


def test_a_member_sees_all_ranks_once_the_others_have_told_theirs() -> None:
    import time

    exchange = exchange_with(Others(told({2: WAITS, 3: WAITS}, time=time.time())), 4)
    assert exchange.tick(0.0) is None
    assert (exchange.tick(exchange.due) or {}).keys() == {0, 1, 2, 3}
