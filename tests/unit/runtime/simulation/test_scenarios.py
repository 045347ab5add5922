"""What users are promised, one scenario each, with many seeds: whatever the timing, the result is the same."""

from __future__ import annotations

import pytest
from elasticjob_runtime.contract import PARTITION_GRACE, ExitCode, PlanReason

from tests.unit.runtime.simulation.agent import KEYS, LEASE_TTL
from tests.unit.runtime.simulation.events import Kind
from tests.unit.runtime.simulation.heartbeats import SILENT
from tests.unit.runtime.simulation.scenario import Scenario


def test_an_etcd_that_is_empty_again_restarts_no_workers(seed: int) -> None:
    scenario = Scenario(seed=seed)
    before, secret = scenario.plan, scenario.server.read(KEYS.secret)
    scenario.happens(Kind.STORE_EMPTIED, seconds=seed / 2)
    scenario.wait(seed / 2 + 30.0)
    scenario.check(scenario.plan.attempt == before.attempt, "a new plan was made")
    after = scenario.server.read(KEYS.secret)
    scenario.check(secret and after and secret.value == after.value, "the run has another secret")
    scenario.trains(3)


@pytest.mark.parametrize(
    ("agents", "least", "most"),
    [(4, 2, 3), (1, 1, 1), (2, 1, 1)],
    ids=["a group", "a sole member", "a sole member and a spare"],
)
def test_an_etcd_outage_of_a_minute_restarts_no_workers(seed: int, agents: int, least: int, most: int) -> None:
    scenario = Scenario(agents=agents, least=least, most=most, seed=seed)
    before, trainers = scenario.plan, scenario.trainers
    scenario.happens(Kind.STORE_DOWN, seconds=60.0)
    scenario.wait(90.0)
    scenario.check(scenario.plan == before, "a new plan was made")
    scenario.check(scenario.trainers == trainers and len(trainers) == most)


def test_a_stranger_with_recordings_neither_joins_nor_hides_a_lost_node(seed: int) -> None:
    scenario = Scenario(seed=seed)
    before = scenario.plan
    scenario.happens(Kind.STRANGER)
    scenario.check(scenario.network.dropped, "the stranger was not dropped")
    scenario.wait(5.0)
    scenario.check(scenario.plan == before, "a stranger changed the plan")
    dropped = scenario.network.dropped
    scenario.happens(Kind.CRASH_AGENT, scenario.trainers[seed % 3])
    scenario.wait(SILENT + 1.5)
    scenario.check(scenario.network.dropped > dropped, "the stranger did not answer for the lost node")
    scenario.check(scenario.plan.reason is PlanReason.MEMBER_LOST, "the stranger passes for the lost node")


def test_a_joiner_that_finds_an_empty_etcd_first_and_the_old_members_end_in_one_group(seed: int) -> None:
    """It makes another secret, which the old members take over as they register again."""
    scenario = Scenario(agents=2, least=2, most=3, seed=seed)
    scenario.happens(Kind.STORE_EMPTIED, seconds=0.5)
    scenario.happens(Kind.JOIN)
    scenario.wait(40.0)
    scenario.trains(3)
    scenario.check(len({agent.port.secret for agent in scenario.trainers}) == 1, "they know different secrets")


def test_a_lost_node_is_replaced_long_before_its_lease_ends_at_no_restart(seed: int) -> None:
    scenario = Scenario(seed=seed)
    before = scenario.plan
    lost = scenario.trainers[seed % 3]
    scenario.happens(Kind.CRASH_AGENT, lost)
    scenario.wait(SILENT + 1.5)
    scenario.check(scenario.plan.round == before.round + 1, "no new plan yet")
    scenario.check((scenario.plan.reason, scenario.plan.restart_count) == (PlanReason.MEMBER_LOST, 0))
    scenario.trains(3, "the spare was not promoted")


def test_a_frozen_node_is_replaced_and_joins_again_later(seed: int) -> None:
    scenario = Scenario(agents=3, seed=seed)
    frozen = scenario.trainers[seed % 3]
    scenario.happens(Kind.FREEZE, frozen, seconds=20.0)
    scenario.wait(LEASE_TTL + 4.0)
    scenario.check(len(scenario.trainers) == 2 and frozen not in scenario.trainers)
    scenario.wait(20.0)
    scenario.trains(3, "it did not join again", restarts=0)


def test_a_partitioned_node_does_not_train_on_its_own(seed: int) -> None:
    scenario = Scenario(agents=3, seed=seed, max_restarts=0)
    cut = scenario.trainers[seed % 3]
    scenario.happens(Kind.PARTITION, cut, seconds=60.0)
    scenario.wait(LEASE_TTL + 2 * SILENT + 1.0)
    scenario.check(not cut.workers.alive, "two groups train")
    scenario.trains(2)


def test_a_node_that_cannot_reach_etcd_stops_when_the_others_continue_without_it(seed: int) -> None:
    scenario = Scenario(agents=3, seed=seed)
    cut = scenario.trainers[seed % 3]
    scenario.happens(Kind.CUT_STORE, cut, seconds=60.0)
    scenario.wait(LEASE_TTL + 5.0)
    scenario.check(not cut.workers.alive, "two groups train")
    scenario.trains(2)
    scenario.wait(70.0)
    scenario.check(len(scenario.trainers) == 3 and cut.live, "it did not join again")
    scenario.check(scenario.plan.restart_count == 0)


def test_a_sole_member_stops_when_its_spare_takes_over(seed: int) -> None:
    scenario = Scenario(agents=2, least=1, most=1, seed=seed)
    cut = scenario.trainers[0]
    scenario.happens(Kind.CUT_STORE if seed % 2 else Kind.PARTITION, cut, seconds=60.0)
    scenario.wait(LEASE_TTL + 5.0)
    scenario.check(not cut.workers.alive, "two groups train")
    scenario.check(len(scenario.trainers) == 1 and cut not in scenario.trainers)


def test_two_members_that_join_shortly_after_each_other_cost_one_round(seed: int) -> None:
    scenario = Scenario(agents=2, least=2, most=6, seed=seed)
    round_number = scenario.plan.round
    scenario.happens(Kind.JOIN)
    scenario.wait(0.2)
    scenario.happens(Kind.JOIN)
    scenario.wait(8.0)
    scenario.check(scenario.plan.round == round_number + 1, "two rounds")
    scenario.trains(4)


def test_a_joiner_whose_processes_crash_costs_no_restart_of_the_budget(seed: int) -> None:
    scenario = Scenario(agents=3, most=4, seed=seed)
    before = scenario.trainers
    scenario.happens(Kind.JOIN_BROKEN, seconds=600.0)
    broken = scenario.agents[-1]
    scenario.wait(30.0)
    scenario.check(broken.exit is not None and broken.exit.code is ExitCode.CANNOT_JOIN, f"{broken} does not give up")
    scenario.check(scenario.outcome() is None, "the job ends")
    scenario.check(set(before) <= set(scenario.trainers), "the others do not train")
    scenario.wait(10.0)
    scenario.trains(4, "its replacement has not joined", restarts=0)


def test_one_bad_link_evicts_no_member_for_long(seed: int) -> None:
    scenario = Scenario(agents=3, seed=seed)
    scenario.happens(Kind.CUT_PEERS, scenario.trainers[seed % 3], seconds=3.0)
    scenario.wait(15.0)
    scenario.trains(3, restarts=0)


def test_a_leader_that_restarts_under_its_name_does_not_stop_the_job(seed: int) -> None:
    scenario = Scenario(agents=3, seed=seed)
    scenario.happens(Kind.CRASH_AGENT, scenario.trainers[0], seconds=0.2, arg=0)
    scenario.wait(10.0)
    scenario.trains(3, restarts=0)


def test_a_leaving_member_is_replaced_while_its_workers_still_save(seed: int) -> None:
    scenario = Scenario(seed=seed)
    leaving = scenario.trainers[seed % 3]
    scenario.happens(Kind.LEAVE, leaving)
    scenario.wait(5.0)
    scenario.check(scenario.plan.reason is PlanReason.MEMBER_LEFT)
    scenario.check(len(scenario.trainers) == 3 and leaving not in scenario.trainers)
    scenario.check(leaving.exit is not None and leaving.exit.code is ExitCode.TERMINATED)


def test_a_join_stops_no_workers_before_the_joiner_is_ready(seed: int) -> None:
    scenario = Scenario(agents=2, seed=seed)
    before = scenario.plan
    scenario.happens(Kind.JOIN)
    joiner = scenario.agents[-1]
    while not joiner.warm:
        scenario.check(scenario.plan == before, "planned before it was ready")
        scenario.wait(0.05)
    scenario.wait(4.0)
    scenario.check(scenario.plan.reason is PlanReason.MEMBER_JOINED)
    scenario.check([agent.name for agent in scenario.trainers][-1] == joiner.name, "survivors keep their ranks")


def test_a_job_below_its_minimum_waits_and_continues_when_a_member_joins(seed: int) -> None:
    scenario = Scenario(agents=2, seed=seed)
    before = scenario.plan
    scenario.happens(Kind.CRASH_AGENT, scenario.trainers[seed % 2])
    scenario.wait(20.0)
    scenario.check(scenario.plan == before)
    scenario.happens(Kind.JOIN)
    scenario.wait(5.0)
    scenario.trains(2, restarts=0)


def test_a_failure_beyond_the_budget_ends_the_job_for_all_members(seed: int) -> None:
    scenario = Scenario(seed=seed, max_restarts=1)
    for _ in range(2):
        scenario.happens(Kind.CRASH_WORKER, scenario.trainers[seed % 3])
        scenario.wait(4.0)
    codes = {agent.exit.code for agent in scenario.agents if agent.exit}
    scenario.check(codes == {ExitCode.WORKERS_FAILED} and not any(agent.live for agent in scenario.agents))


def test_all_members_succeed_and_one_that_joins_afterwards_exits_with_the_outcome(seed: int) -> None:
    scenario = Scenario(seed=seed)
    scenario.finish()
    scenario.wait(6.0)
    scenario.check({agent.exit.code for agent in scenario.agents if agent.exit} == {ExitCode.SUCCEEDED})
    scenario.check(all(agent.exit for agent in scenario.agents), "an agent never ended")
    scenario.happens(Kind.JOIN)
    scenario.wait(4.0)
    late = scenario.agents[-1].exit
    scenario.check(late and late.code is ExitCode.SUCCEEDED and "before this agent joined" in late.reason)


@pytest.mark.parametrize(
    ("together", "seconds"), [(False, 40.0), (True, 15.0)], ids=["no longer than the grace", "all are asked together"]
)
@pytest.mark.parametrize("kind", [Kind.JOIN, Kind.LEAVE], ids=["a join", "the leader leaves"])
def test_a_planned_change_waits_for_workers_that_save(seed: int, kind: Kind, together: bool, seconds: float) -> None:
    joins = kind is Kind.JOIN
    scenario = Scenario(agents=2 if joins else 3, seed=seed, saves=True, together=together)
    before, leader = scenario.plan, scenario.trainers[0]
    scenario.happens(kind, leader)
    scenario.wait(seconds)
    reason = PlanReason.MEMBER_JOINED if joins else PlanReason.MEMBER_LEFT
    scenario.check((scenario.plan.round, scenario.plan.reason) == (before.round + 1, reason))
    scenario.trains(3 if joins else 2, restarts=0)
    scenario.check(joins == (leader in scenario.trainers))


def test_another_member_takes_over_from_a_planner_that_dies_while_workers_save(seed: int) -> None:
    scenario = Scenario(agents=3, seed=seed, saves=True)
    planner, leaver = scenario.trainers[0], scenario.trainers[2]
    scenario.happens(Kind.LEAVE, leaver)
    scenario.wait(0.1)
    scenario.happens(Kind.CRASH_AGENT, planner)
    scenario.wait(45.0)
    scenario.happens(Kind.JOIN)
    scenario.wait(45.0)
    scenario.trains(2, restarts=0)


@pytest.mark.parametrize("spares", [2, 0], ids=["two spares", "no spares"])
def test_a_whole_group_on_an_island_stops_within_its_grace_and_leaves_one_history(seed: int, spares: int) -> None:
    """With enough spares outside, it stops at once; without, when its grace is over, before any member is replaced."""
    scenario = Scenario(agents=2 + spares, least=2, most=2 if spares else 4, seed=seed)
    group = scenario.trainers
    scenario.check(len(group) == 2)
    there = [agent for agent in scenario.agents if not agent.dead and agent.exit is None]
    bits = sum(1 << there.index(agent) for agent in group)
    scenario.happens(Kind.ISLAND, there[0], seconds=90.0, arg=bits)
    scenario.wait(LEASE_TTL + (6.0 if spares else PARTITION_GRACE + 6.0))
    scenario.check(not any(agent.workers.trains for agent in group), "two groups may train")
    if not spares:  # the operator replaces them
        scenario.happens(Kind.JOIN)
        scenario.happens(Kind.JOIN)
        scenario.wait(10.0)
    scenario.check(len(scenario.trainers) == 2 and not set(scenario.trainers) & set(group), "no other group takes over")
    scenario.wait(90.0)
    scenario.check(scenario.plan.restart_count == 0, "a partition costs a restart")
    scenario.check(all(agent.live for agent in group), "they do not join again")
    scenario.folder.restore()


def test_with_on_partition_consistent_training_stops_with_the_lease_and_resumes_with_etcd(seed: int) -> None:
    scenario = Scenario(agents=3, seed=seed, max_restarts=1, operator=True, consistent=True)
    scenario.happens(Kind.STORE_DOWN, seconds=40.0)
    scenario.wait(LEASE_TTL + 2.0)
    scenario.check(not any(agent.workers.alive for agent in scenario.agents), "a group trains without a lease")
    scenario.wait(60.0)
    scenario.trains(3, "training does not resume")
