"""What people complained of, one story each, told with many seeds: whoever is quicker, it has to end the same way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_runtime.contract import PARTITION_GRACE, ExitCode, PlanReason, PlanValue

from tests.unit.runtime.simulation.agent import KEYS, LEASE_TTL, Agent
from tests.unit.runtime.simulation.events import Event, Kind, Walk
from tests.unit.runtime.simulation.hearing import SILENT
from tests.unit.runtime.simulation.world import World

SEEDS = range(12)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Story(World):
    """A world whose events are told one by one."""

    def __init__(
        self, *, agents: int = 4, least: int = 2, most: int = 3, seed: int = 0, max_restarts: int = 0, **more: Any
    ) -> None:
        super().__init__(Walk(agents=agents, least=least, most=most, seed=seed, max_restarts=max_restarts, **more))
        self.wait(10.0)

    def wait(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now + seconds)

    def happens(self, kind: Kind, who: Agent | None = None, seconds: float = 1.0, arg: int = 1) -> None:
        there = [agent for agent in self.agents if not agent.dead and agent.exit is None]
        self._happens(Event(0.0, kind, there.index(who) if who else 0, seconds, arg))

    @property
    def plan(self) -> PlanValue:
        kv = self.server.read(KEYS.plan)
        assert kv is not None, "no plan\n" + "\n".join(self.clock.trace)
        return PlanValue.from_json(kv.value)

    @property
    def trainers(self) -> list[Agent]:
        """Who runs the current plan, in rank order."""
        attempt = self.plan.attempt
        running = [(agent.workers.view.plan, agent) for agent in self.agents if agent.workers.alive]
        ranked = [
            (plan.rank.group_rank, agent)
            for plan, agent in running
            if plan and plan.rank and plan.value.attempt == attempt
        ]
        return [agent for _, agent in sorted(ranked, key=lambda one: one[0])]

    @property
    def spares(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.live and not agent.workers.alive]

    def check(self, holds: object, what: str = "") -> None:
        assert holds, f"{what}\n" + "\n".join(self.clock.trace)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_came_back_empty_restarts_nobody(seed: int) -> None:
    story = Story(seed=seed)
    before = story.plan
    story.happens(Kind.STORE_EMPTIED, seconds=seed / 2)
    story.wait(seed / 2 + 30.0)
    story.check(story.plan.attempt == before.attempt, "a new plan was made")
    story.check(len(story.trainers) == 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_was_away_for_a_minute_restarts_nobody(seed: int) -> None:
    story = Story(seed=seed)
    before = story.plan
    story.happens(Kind.STORE_DOWN, seconds=60.0)
    story.wait(90.0)
    story.check(story.plan == before, "a new plan was made")
    story.check(len(story.trainers) == 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_node_is_noticed_long_before_its_lease_ends_and_costs_no_restart(seed: int) -> None:
    story = Story(seed=seed)
    before = story.plan
    lost = story.trainers[seed % 3]
    story.happens(Kind.CRASH_AGENT, lost)
    story.wait(SILENT + 1.5)
    story.check(story.plan.round == before.round + 1, "no new plan yet")
    story.check((story.plan.reason, story.plan.restart_count) == (PlanReason.MEMBER_LOST, 0))
    story.check(len(story.trainers) == 3, "the spare was not promoted")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_node_is_noticed_and_taken_back_later(seed: int) -> None:
    story = Story(agents=3, seed=seed)
    frozen = story.trainers[seed % 3]
    story.happens(Kind.FREEZE, frozen, seconds=20.0)
    story.wait(LEASE_TTL + 4.0)
    story.check(len(story.trainers) == 2 and frozen not in story.trainers)
    story.wait(20.0)
    story.check(len(story.trainers) == 3, "it was not taken back")
    story.check(story.plan.restart_count == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_is_cut_off_does_not_train_on_its_own(seed: int) -> None:
    story = Story(agents=3, seed=seed, max_restarts=0)
    cut = story.trainers[seed % 3]
    story.happens(Kind.PARTITION, cut, seconds=60.0)
    story.wait(LEASE_TTL + 2 * SILENT + 1.0)
    story.check(not cut.workers.alive, "two groups train")
    story.check(len(story.trainers) == 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_only_etcd_does_not_hear_stops_when_the_others_go_on_without_it(seed: int) -> None:
    story = Story(agents=3, seed=seed)
    cut = story.trainers[seed % 3]
    story.happens(Kind.CUT_STORE, cut, seconds=60.0)
    story.wait(LEASE_TTL + 5.0)
    story.check(not cut.workers.alive, "two groups train")
    story.check(len(story.trainers) == 2)
    story.wait(70.0)
    story.check(len(story.trainers) == 3 and cut.live, "it was not taken back")
    story.check(story.plan.restart_count == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_only_member_of_a_plan_stops_when_its_spare_takes_over(seed: int) -> None:
    story = Story(agents=2, least=1, most=1, seed=seed)
    cut = story.trainers[0]
    story.happens(Kind.CUT_STORE if seed % 2 else Kind.PARTITION, cut, seconds=60.0)
    story.wait(LEASE_TTL + 5.0)
    story.check(not cut.workers.alive, "two groups train")
    story.check(len(story.trainers) == 1 and cut not in story.trainers)


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_only_member_of_a_plan_trains_on_while_etcd_is_away_for_all(seed: int, agents: int) -> None:
    story = Story(agents=agents, least=1, most=1, seed=seed)
    before, only = story.plan, story.trainers
    story.happens(Kind.STORE_DOWN, seconds=50.0)
    story.wait(80.0)
    story.check(story.plan == before, "a new plan was made")
    story.check(story.trainers == only)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_that_are_ready_one_after_the_other_cost_one_restart(seed: int) -> None:
    story = Story(agents=2, least=2, most=6, seed=seed)
    round_number = story.plan.round
    story.happens(Kind.JOIN)
    story.wait(0.2)
    story.happens(Kind.JOIN)
    story.wait(8.0)
    story.check(story.plan.round == round_number + 1, "two restarts")
    story.check(len(story.trainers) == 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_comes_when_the_job_is_over_leaves_with_its_outcome(seed: int) -> None:
    story = Story(seed=seed)
    story.finish()
    story.wait(8.0)
    story.happens(Kind.JOIN)
    story.wait(4.0)
    late = story.agents[-1]
    story.check(late.exit is not None and late.exit.code is ExitCode.SUCCEEDED)
    story.check(late.exit is not None and "before this agent joined" in late.exit.reason)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_bad_link_evicts_nobody_for_long(seed: int) -> None:
    story = Story(agents=3, seed=seed)
    story.happens(Kind.CUT_PEERS, story.trainers[seed % 3], seconds=3.0)
    story.wait(15.0)
    story.check(len(story.trainers) == 3)
    story.check(story.plan.restart_count == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_comes_back_under_its_name_does_not_stop_the_job(seed: int) -> None:
    story = Story(agents=3, seed=seed)
    story.happens(Kind.CRASH_AGENT, story.trainers[0], seconds=0.2, arg=0)
    story.wait(10.0)
    story.check(len(story.trainers) == 3)
    story.check(story.plan.restart_count == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leaving_member_is_replaced_while_its_workers_still_save(seed: int) -> None:
    story = Story(seed=seed)
    leaving = story.trainers[seed % 3]
    story.happens(Kind.LEAVE, leaving)
    story.wait(5.0)
    story.check(story.plan.reason is PlanReason.MEMBER_LEFT)
    story.check(len(story.trainers) == 3 and leaving not in story.trainers)
    story.check(leaving.exit is not None and leaving.exit.code is ExitCode.TERMINATED)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_join_stops_nobody_before_the_newcomer_is_ready(seed: int) -> None:
    story = Story(agents=2, seed=seed)
    before = story.plan
    story.happens(Kind.JOIN)
    newcomer = story.agents[-1]
    while not newcomer.warm:
        story.check(story.plan == before, "planned before it was ready")
        story.wait(0.05)
    story.wait(4.0)
    story.check(story.plan.reason is PlanReason.MEMBER_JOINED)
    story.check([agent.name for agent in story.trainers][-1] == newcomer.name, "survivors keep their ranks")


@pytest.mark.parametrize("seed", SEEDS)
def test_below_its_minimum_a_job_waits_and_goes_on_when_one_comes(seed: int) -> None:
    story = Story(agents=2, seed=seed)
    before = story.plan
    story.happens(Kind.CRASH_AGENT, story.trainers[seed % 2])
    story.wait(20.0)
    story.check(story.plan == before)
    story.happens(Kind.JOIN)
    story.wait(5.0)
    story.check(len(story.trainers) == 2)
    story.check(story.plan.restart_count == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_beyond_the_budget_ends_the_job_for_everybody(seed: int) -> None:
    story = Story(seed=seed, max_restarts=1)
    for _ in range(2):
        story.happens(Kind.CRASH_WORKER, story.trainers[seed % 3])
        story.wait(4.0)
    codes = {agent.exit.code for agent in story.agents if agent.exit}
    story.check(codes == {ExitCode.WORKERS_FAILED} and not any(agent.live for agent in story.agents))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_that_ends_first_waits_for_the_others_and_all_succeed(seed: int) -> None:
    story = Story(seed=seed)
    story.finish()
    story.wait(6.0)
    story.check({agent.exit.code for agent in story.agents if agent.exit} == {ExitCode.SUCCEEDED})
    story.check(all(agent.exit for agent in story.agents), "somebody never ended")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_join_waits_for_workers_that_save_and_no_longer_than_the_grace(seed: int) -> None:
    story = Story(agents=2, seed=seed, saves=True)
    before = story.plan
    story.happens(Kind.JOIN)
    story.wait(40.0)
    story.check((story.plan.round, story.plan.reason) == (before.round + 1, PlanReason.MEMBER_JOINED))
    story.check(len(story.trainers) == 3 and story.plan.restart_count == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_others_wait_for_a_leader_that_saves_before_it_leaves(seed: int) -> None:
    story = Story(agents=3, seed=seed, saves=True)
    before, leader = story.plan, story.trainers[0]
    story.happens(Kind.LEAVE, leader)
    story.wait(40.0)
    story.check((story.plan.round, story.plan.reason) == (before.round + 1, PlanReason.MEMBER_LEFT))
    story.check(len(story.trainers) == 2 and leader not in story.trainers and story.plan.restart_count == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_planner_that_dies_while_workers_save_is_succeeded(seed: int) -> None:
    story = Story(agents=3, seed=seed, saves=True)
    planner, leaver = story.trainers[0], story.trainers[2]
    story.happens(Kind.LEAVE, leaver)
    story.wait(0.1)
    story.happens(Kind.CRASH_AGENT, planner)
    story.wait(45.0)
    story.happens(Kind.JOIN)
    story.wait(45.0)
    story.check(len(story.trainers) == 2 and story.plan.restart_count == 0)


@pytest.mark.parametrize("spares", [2, 0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_whole_group_on_an_island_stops_within_its_grace_and_leaves_one_history(seed: int, spares: int) -> None:
    """With enough spares outside it stops at once; without, when its grace is over, before anybody is replaced."""
    story = Story(agents=2 + spares, least=2, most=2 if spares else 4, seed=seed)
    group = story.trainers
    story.check(len(group) == 2)
    there = [agent for agent in story.agents if not agent.dead and agent.exit is None]
    bits = sum(1 << there.index(agent) for agent in group)
    story.happens(Kind.ISLAND, there[0], seconds=90.0, arg=bits)
    story.wait(LEASE_TTL + (6.0 if spares else PARTITION_GRACE + 6.0))
    story.check(not any(agent.workers.trains for agent in group), "two groups may train")
    if not spares:  # the operator replaces them
        story.happens(Kind.JOIN)
        story.happens(Kind.JOIN)
        story.wait(10.0)
    story.check(len(story.trainers) == 2 and not set(story.trainers) & set(group), "nobody takes over")
    story.wait(90.0)
    story.check(story.plan.restart_count == 0, "a partition costs a restart")
    story.check(all(agent.live for agent in group), "they do not come back")
    story.folder.restore()


@pytest.mark.parametrize("seed", SEEDS)
def test_consistent_stops_with_the_lease_and_goes_on_when_etcd_is_back(seed: int) -> None:
    story = Story(agents=3, seed=seed, max_restarts=1, operator=True, consistent=True)
    story.happens(Kind.STORE_DOWN, seconds=40.0)
    story.wait(LEASE_TTL + 2.0)
    story.check(not any(agent.workers.alive for agent in story.agents), "a group trains without a lease")
    story.wait(60.0)
    story.check(len(story.trainers) == 3, "it does not go on")
