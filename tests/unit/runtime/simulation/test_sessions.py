"""What scripts with a session are promised, one scenario each, with many seeds: no surviving worker process restarts,
no step is lost, and training goes on."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_runtime.contract import ExitCode, OutcomeState, PlanReason
from elasticjob_runtime.membership.leaving import LEAVE_GRACE
from elasticjob_runtime.workers.environment import ACK_TIMEOUT

from tests.unit.runtime.simulation.agent import Agent
from tests.unit.runtime.simulation.events import Kind
from tests.unit.runtime.simulation.scenario import Scenario
from tests.unit.runtime.simulation.session_process import SessionProcess
from tests.unit.runtime.simulation.session_workers import KEEP_EVERY
from tests.unit.runtime.simulation.states import State


class SessionScenario(Scenario):
    """A script with a session, whose worker processes continue in place."""

    def __init__(self, *, agents: int = 3, least: int = 1, **more: Any) -> None:
        super().__init__(agents=agents, least=least, max_restarts=100, session=True, **more)
        self.wait(12.0)  # some processes take long to start
        self.check(self.plan.in_place, "the worker processes cannot continue in place")
        self.check(self.steps > 0, "no training")

    def processes(self, *agents: Agent) -> list[SessionProcess]:
        return [process for agent in agents or self.agents for process in agent.workers.processes]

    @property
    def in_training(self) -> list[SessionProcess]:
        return [process for process in self.processes() if process.trains]

    @property
    def newest(self) -> State:
        """The newest state of all processes that train."""
        states = [process.state for process in self.in_training if process.state is not None]
        self.check(states, "no process trains")
        return max(states, key=lambda state: state.number)

    @property
    def steps(self) -> int:
        return self.newest.number

    def continues(self, survivors: list[SessionProcess], state: State, size: int) -> None:
        """`size` processes train, among them all `survivors`, from `state` on."""
        self.check(not any(survivor.dead for survivor in survivors), "a surviving process was restarted")
        self.check(len(self.in_training) == size, f"{self.in_training} train, not {size}")
        self.check(self.newest.extends(state), f"{state} is lost: {self.newest}")
        self.check(self.newest is not state, "no further step")


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_crash_restarts_the_crashed_process_only_and_loses_no_step(seed: int, nproc: int) -> None:
    scenario = SessionScenario(seed=seed, nproc=nproc)
    crashed = scenario.trainers[seed % 3]
    survivors = scenario.processes(*(agent for agent in scenario.trainers if agent is not crashed))
    if nproc == 2:
        survivors.append(scenario.processes(crashed)[1])
    state = scenario.newest
    scenario.happens(Kind.CRASH_WORKER, crashed, arg=0)
    scenario.wait(25.0)
    scenario.continues(survivors, state, 3 * nproc)


@pytest.mark.parametrize("kind", [Kind.CRASH_AGENT, Kind.LEAVE, Kind.DRAIN])
def test_the_others_continue_when_a_member_is_lost_or_leaves(seed: int, kind: Kind) -> None:
    scenario = SessionScenario(seed=seed, operator=True)
    gone = scenario.trainers[seed % 3]
    survivors = scenario.processes(*(agent for agent in scenario.trainers if agent is not gone))
    state = min((process.state for process in survivors if process.state), key=lambda one: one.number)
    scenario.happens(kind, gone)
    scenario.wait(8.0)
    scenario.continues(survivors, state, 2)


@pytest.mark.parametrize(
    ("agents", "joins"), [(3, False), (4, False), (3, True)], ids=["", "a spare is there", "a member joins"]
)
@pytest.mark.parametrize("kind", [Kind.CRASH_AGENT, Kind.LEAVE])
def test_the_others_continue_when_a_member_and_all_that_etcd_stored_are_lost(
    seed: int, kind: Kind, agents: int, joins: bool
) -> None:
    """As when the node with both is drained or lost."""
    outage = 1.0 + seed % 13
    scenario = SessionScenario(agents=agents, most=3, seed=seed, operator=True)
    gone = scenario.trainers[seed % 3]
    survivors = scenario.processes(*(agent for agent in scenario.trainers if agent is not gone))
    state = min((process.state for process in survivors if process.state), key=lambda one: one.number)
    scenario.happens(Kind.STORE_EMPTIED, seconds=outage)
    scenario.happens(kind, gone)
    if joins:
        scenario.happens(Kind.JOIN)
    scenario.wait(outage + 40.0)
    scenario.continues(survivors, state, agents - 1 + joins)


@pytest.mark.parametrize("replica_size", [0, 2])
def test_training_goes_on_when_worker_processes_fail_while_etcd_and_its_data_are_lost(
    seed: int, replica_size: int
) -> None:
    """With the leader: some members do not know the others' ranks, and yet all must agree on who plans."""
    outage = 1.0 + seed % 13
    scenario = SessionScenario(agents=6, most=6, least=2, seed=seed, operator=True, replica_size=replica_size)
    members = scenario.trainers
    scenario.happens(Kind.STORE_EMPTIED, seconds=outage)
    scenario.happens(Kind.CRASH_WORKER, members[1], arg=0)
    scenario.happens(Kind.CRASH_AGENT if seed % 2 else Kind.LEAVE, members[0])
    scenario.wait(outage + 60.0)
    scenario.check(len(scenario.in_training) >= 4, f"{scenario.in_training} train")


@pytest.mark.parametrize("apart", [0.0, 0.3, 0.9, 1.1, 2.5], ids="{} s apart".format)
@pytest.mark.parametrize(
    ("least", "slow"), [(1, 0.0), (3, 0.0), (3, 5.0)], ids=["some may go", "none may go", "a slow network"]
)
def test_one_member_saves_when_all_leave(seed: int, least: int, slow: float, apart: float) -> None:
    scenario = SessionScenario(least=least, seed=seed)
    members = scenario.trainers
    if slow:
        scenario.happens(Kind.SLOW, seconds=slow)
    for number in range(3):
        scenario.happens(Kind.LEAVE, members[(seed + number) % 3])
        scenario.wait(apart)
    scenario.wait(20.0)
    scenario.check(all(agent.exit is not None for agent in members), "not all members have left")
    saved = [agent for agent in members if agent.saves_for_all]
    scenario.check(len(saved) == 1, f"{saved} have saved, not one member")


def test_one_member_saves_when_all_leave_while_etcd_does_not_answer(seed: int) -> None:
    scenario = SessionScenario(least=3, seed=seed)
    members = scenario.trainers
    scenario.happens(Kind.STORE_DOWN, seconds=4.0 + seed / 2)
    for agent in members:
        scenario.happens(Kind.LEAVE, agent)
    scenario.wait(30.0)
    saved = [agent for agent in members if agent.saves_for_all]
    scenario.check(len(saved) == 1, f"{saved} have saved, not one member")


@pytest.mark.parametrize("least", [1, 3])
def test_one_member_that_leaves_waits_no_longer_than_a_moment(seed: int, least: int) -> None:
    scenario = SessionScenario(least=least, seed=seed)
    leaver = scenario.trainers[seed % 3]
    scenario.happens(Kind.LEAVE, leaver)
    scenario.wait(LEAVE_GRACE + 2.0)
    scenario.check(leaver.exit is not None, "it still waits")
    scenario.check(not leaver.saves_for_all, "it saves, though others stay")


def test_a_joining_member_restarts_no_process_and_gets_the_state(seed: int) -> None:
    scenario = SessionScenario(agents=2, seed=seed)
    survivors, state = scenario.processes(), scenario.newest
    scenario.happens(Kind.JOIN)
    scenario.wait(25.0)
    scenario.continues(survivors, state, 3)
    scenario.check(scenario.plan.restart_count == 0)


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_joiner_that_takes_long_to_start_does_not_hold_up_the_others(seed: int, nproc: int) -> None:
    scenario = SessionScenario(agents=3, most=4, seed=seed, nproc=nproc)
    crashed = scenario.trainers[seed % 3]
    survivors = scenario.processes(*(agent for agent in scenario.trainers if agent is not crashed))
    before, state = scenario.plan, scenario.newest
    scenario.happens(Kind.JOIN_SLOW, seconds=200.0)
    scenario.wait(190.0)
    scenario.check(scenario.plan == before, "the others change their plan for a joiner that is not ready")
    scenario.happens(Kind.CRASH_WORKER, crashed, arg=0)
    scenario.wait(30.0)
    scenario.continues(survivors, state, 4 * nproc)


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_joiner_whose_processes_crash_costs_the_others_nothing(seed: int, nproc: int) -> None:
    scenario = SessionScenario(agents=3, most=4, seed=seed, nproc=nproc)
    survivors, state, before = scenario.processes(), scenario.newest, scenario.plan
    scenario.happens(Kind.JOIN_BROKEN, seconds=600.0)
    broken = scenario.agents[-1]
    scenario.wait(70.0)
    scenario.check(scenario.plan == before, "the others change their plan for a joiner that crashes")
    scenario.continues(survivors, state, 3 * nproc)
    scenario.wait(60.0)
    scenario.continues(survivors, state, 4 * nproc)
    scenario.check(scenario.plan.restart_count == 0)
    scenario.check(broken.exit is not None and broken.exit.code is ExitCode.CANNOT_JOIN, f"{broken} does not give up")


def test_a_frozen_process_does_not_hold_up_the_others_when_a_plan_changes(seed: int) -> None:
    scenario = SessionScenario(agents=4, most=4, seed=seed)
    frozen, lost, *others = scenario.trainers
    survivors, state = scenario.processes(*others), scenario.newest
    scenario.happens(Kind.FREEZE_WORKER, frozen, seconds=1000.0, arg=0)
    scenario.happens(Kind.CRASH_AGENT, lost)
    scenario.wait(ACK_TIMEOUT + 8.0)
    scenario.check(all(process in scenario.in_training for process in survivors), "they wait for the frozen process")
    scenario.check(scenario.newest.extends(state) or state.extends(scenario.newest), "other steps than before")


def test_connections_that_break_without_a_loss_bring_a_new_world_soon(seed: int) -> None:
    scenario = SessionScenario(seed=seed)
    survivors, state, before = scenario.processes(), scenario.newest, scenario.plan
    scenario.happens(Kind.BREAK_LINKS, scenario.trainers[seed % 3])
    scenario.wait(8.0)
    scenario.continues(survivors, state, 3)
    scenario.check(scenario.plan.round > before.round and scenario.plan.reason is PlanReason.START)
    scenario.check(scenario.plan.restart_count == 0)


def test_survivors_wait_for_a_plan_while_etcd_is_down(seed: int) -> None:
    scenario = SessionScenario(seed=seed)
    crashed, *others = scenario.trainers
    survivors, state = scenario.processes(*others), scenario.newest
    scenario.happens(Kind.STORE_DOWN, seconds=15.0 + seed)
    scenario.happens(Kind.CRASH_WORKER, crashed, arg=0)
    scenario.wait(60.0)
    scenario.continues(survivors, state, 3)


@pytest.mark.parametrize("kind", [Kind.STORE_DOWN, Kind.STORE_EMPTIED])
def test_a_join_during_an_etcd_outage_waits_for_it_and_restarts_nothing(seed: int, kind: Kind) -> None:
    scenario = SessionScenario(agents=2, seed=seed)
    survivors, state = scenario.processes(), scenario.newest
    scenario.happens(kind, seconds=seed * 1.0)
    scenario.happens(Kind.JOIN)
    scenario.wait(60.0)
    scenario.continues(survivors, state, 3)


def test_a_process_that_crashes_while_a_world_is_formed_does_not_hold_up_the_others(seed: int) -> None:
    scenario = SessionScenario(agents=4, most=4, seed=seed)
    lost, *others = scenario.trainers
    before, state = scenario.processes(*others), scenario.newest
    scenario.happens(Kind.CRASH_FORMING)
    scenario.happens(Kind.CRASH_AGENT, lost)
    scenario.wait(40.0)
    scenario.continues([process for process in before if not process.dead], state, 3)
    scenario.check(sum(process.dead for process in before) == 1, "more than one process ended")


def test_what_an_island_trained_meanwhile_does_not_replace_what_the_others_did(seed: int) -> None:
    """Its processes are moved into a later plan of the others, and have more steps than these."""
    scenario = SessionScenario(agents=1, seed=seed)
    island = scenario.trainers[0]
    scenario.happens(Kind.ISLAND, island, seconds=20.0, arg=1)
    scenario.happens(Kind.JOIN)
    scenario.wait(11.0)
    scenario.happens(Kind.JOIN)
    scenario.wait(8.5)
    others = [process.state for process in scenario.in_training if process.agent is not island and process.state]
    scenario.check(others, "the others do not train")
    state = max(others, key=lambda other: other.number)
    scenario.wait(40.0)
    scenario.check(scenario.newest.extends(state), f"{state} of the others is lost: {scenario.newest}")
    scenario.check(len(scenario.in_training) == 3)


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("kind", [Kind.JOIN, Kind.LEAVE, Kind.CRASH_WORKER])
def test_a_job_ends_even_if_a_change_meets_its_last_step(seed: int, kind: Kind, nproc: int) -> None:
    scenario = SessionScenario(agents=3, least=2, most=4, seed=seed, nproc=nproc)
    scenario.happens(kind)
    scenario.wait(seed / 10)
    scenario.happens(Kind.FINISH)
    scenario.wait(60.0)
    outcome = scenario.outcome()
    scenario.check(outcome is not None and outcome.state is OutcomeState.SUCCEEDED, f"outcome {outcome}")


def test_if_all_processes_crash_they_start_from_what_was_kept_in_memory(seed: int) -> None:
    scenario = SessionScenario(seed=seed)
    state = scenario.newest
    for agent in scenario.trainers:
        scenario.happens(Kind.CRASH_WORKER, agent, arg=0)
    scenario.wait(25.0)
    scenario.check(len(scenario.in_training) == 3)
    scenario.check(scenario.plan.in_place, "the new processes cannot continue in place")
    while state.before is not None and state.number % KEEP_EVERY:
        state = state.before
    scenario.check(scenario.newest.extends(state), f"{state} is lost: {scenario.newest}")


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("kind", [Kind.CRASH_WORKER, Kind.CRASH_AGENT, Kind.LEAVE])
def test_the_other_replica_goes_on_when_one_loses_a_process_or_a_member(seed: int, kind: Kind, nproc: int) -> None:
    scenario = SessionScenario(agents=4, least=2, most=4, seed=seed, replica_size=2, nproc=nproc)
    gone = scenario.trainers[seed % 4]
    lost = gone.workers.view.plan
    assert lost is not None
    assert lost.replica is not None
    members = lost.replica.members
    survivors = scenario.processes(*(agent for agent in scenario.trainers if agent.name not in members))
    state = min((process.state for process in survivors if process.state), key=lambda one: one.number)
    scenario.happens(kind, gone, arg=1)
    scenario.wait(30.0)
    scenario.continues(survivors, state, (4 if kind is Kind.CRASH_WORKER else 2) * nproc)
    partner = next(agent for agent in scenario.agents if agent.name in members and agent is not gone)
    if kind is not Kind.CRASH_WORKER:
        scenario.check(not partner.workers.processes, f"{partner} has no one to train with, and trains")
        scenario.happens(Kind.JOIN)
        scenario.wait(30.0)
        scenario.continues(survivors, state, 4 * nproc)
