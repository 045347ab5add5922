"""What a member under torchrun does next: `membership.decide`, with the rules that differ because torch's agent starts
and stops the workers.

To the rendezvous, torch's agent is a worker group that it cannot control directly. It requests a stop
(num_nodes_waiting() returns 1, and torch polls it ten times a second); when the agent calls next_rendezvous(), the
workers have stopped. Pure: no I/O, no clock, no torch.
"""

from __future__ import annotations

import dataclasses
import enum

from elasticjob_runtime.contract import ExitCode, FailureValue, MemberState, OutcomeValue, PlanReason
from elasticjob_runtime.membership import View, decide
from elasticjob_runtime.membership.actions import Action, Exit, PublishOutcome, PublishState, Wait
from elasticjob_runtime.membership.view import Plan, Role, Workers, WorkersState

STOP_TIMEOUT = 45.0
"""s that torch's agent has to stop its workers, 30 of which it leaves to the workers. Longer: the others wait longer
for an agent that hangs; shorter: a member with slow workers is left out of a plan, and causes another one when it
returns."""


class AgentPhase(enum.Enum):
    """What torch's agent is doing."""

    WAITING = "waiting"
    """In next_rendezvous(), without a plan to follow."""
    MEETING = "meeting"
    """In next_rendezvous() with a plan; waits for the plan's other members."""
    RUNNING = "running"
    """next_rendezvous() has returned: the agent starts workers and watches them."""
    STOPPING = "stopping"
    """Requested to stop its workers; has not called next_rendezvous() again yet."""
    FINISHED = "finished"
    """All its workers have exited with 0. It never calls next_rendezvous() again."""


_WORKERS = {
    AgentPhase.MEETING: WorkersState.RUNNING,
    AgentPhase.RUNNING: WorkersState.RUNNING,
    AgentPhase.STOPPING: WorkersState.STOPPING,
    AgentPhase.FINISHED: WorkersState.SUCCEEDED,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TorchAgent:
    """The state of torch's agent as this member sees it. Each method returns the next state; it is the same state if
    the event does not fit the phase."""

    phase: AgentPhase = AgentPhase.WAITING
    plan: Plan | None = None
    """The last plan that the agent was given."""
    failure: FailureValue | None = None
    """Why its last workers stopped. Published only if there is no newer plan."""
    changed_at: float = 0.0
    """When the phase began (monotonic, s)."""

    @property
    def round(self) -> int:
        return self.plan.round if self.plan else 0

    @property
    def workers(self) -> Workers:
        """The same state as `decide` expects it."""
        state = _WORKERS.get(self.phase, WorkersState.FAILED if self.failure else WorkersState.NONE)
        return Workers(state=state, round=self.round, failure=self.failure, changed_at=self.changed_at, plan=self.plan)

    def on_rejoin(self, failure: FailureValue, now: float) -> TorchAgent:
        """The agent called next_rendezvous(): its workers are gone."""
        if self.phase in (AgentPhase.WAITING, AgentPhase.MEETING):
            return self
        return dataclasses.replace(self, phase=AgentPhase.WAITING, failure=failure, changed_at=now)

    def start(self, plan: Plan, now: float) -> TorchAgent:
        if self.phase is not AgentPhase.WAITING:
            return self
        return TorchAgent(phase=AgentPhase.MEETING, plan=plan, changed_at=now)

    def stop(self, failure: FailureValue, now: float) -> TorchAgent:
        """The agent must stop its workers. If it has not started any yet, it has already stopped."""
        if self.phase is AgentPhase.MEETING:
            return dataclasses.replace(self, phase=AgentPhase.WAITING, failure=failure, changed_at=now)
        return self._move(AgentPhase.RUNNING, AgentPhase.STOPPING, now)

    def run(self, round_number: int, now: float) -> TorchAgent:
        """All members of the plan of this round have met."""
        return self._move(AgentPhase.MEETING, AgentPhase.RUNNING, now) if round_number == self.round else self

    def finish(self, now: float) -> TorchAgent:
        if self.phase not in (AgentPhase.RUNNING, AgentPhase.STOPPING):
            return self
        return dataclasses.replace(self, phase=AgentPhase.FINISHED, changed_at=now)

    def is_in(self, round_number: int) -> bool:
        """Whether this agent still takes part in the round."""
        return round_number == self.round and self.phase in (
            AgentPhase.MEETING,
            AgentPhase.RUNNING,
            AgentPhase.FINISHED,
        )

    def _move(self, before: AgentPhase, after: AgentPhase, now: float) -> TorchAgent:
        return dataclasses.replace(self, phase=after, changed_at=now) if self.phase is before else self


def next_action(view: View, agent: TorchAgent, outcome: OutcomeValue | None, now: float) -> Action:
    """`view.workers` must be `agent.workers`. `outcome`: the outcome that torch's agent reported; None: none yet."""
    if view.store.outcome is None and view.leaving_since is None and view.store.registered:
        for special in (
            _exit_if_launchers_differ(view),
            _conclude(view, outcome),
            _leave_when_finished(view, agent),
            _report_slow_stop(view, agent, now),
        ):
            if special is not None:
                return special
    action = decide(_adopt_plan(view), now)
    if isinstance(action, Wait) and (until := _stop_deadline(view, agent)) is not None:
        return dataclasses.replace(action, until=until if action.until is None else min(until, action.until))
    if isinstance(action, PublishOutcome) and view.store.plan is not None:
        message = f"the workers of all {view.store.plan.value.size} members exited with 0"
        return dataclasses.replace(action, outcome=dataclasses.replace(action.outcome, message=message), reason=message)
    return action


def _exit_if_launchers_differ(view: View) -> Action | None:
    """Exits if the job has members under elasticrun: they cannot train with members under torchrun, since the two wait
    for each other in different ways."""
    if view.workers.round:
        return None
    known = [member.value for member in view.store.members.values()] + (
        [view.store.first_member] if view.store.first_member else []
    )
    if all(member.nproc == view.settings.nproc for member in known):
        return None
    reason = (
        "the job with this --rdzv-id is elasticrun's: start all members with one launcher, or take another "
        "--rdzv-id for torchrun"
    )
    return Exit(code=ExitCode.CONFIG, reason=reason)


def _adopt_plan(view: View) -> View:
    """Lets this member follow on a plan that elasticrun left behind: its members are dead, or
    `_exit_if_launchers_differ` will see them."""
    plan, nproc = view.store.plan, view.settings.nproc
    if plan is None or plan.value.nproc == nproc:
        return view
    ours = dataclasses.replace(plan, value=dataclasses.replace(plan.value, nproc=nproc))
    return dataclasses.replace(view, store=dataclasses.replace(view.store, plan=ours))


def _conclude(view: View, outcome: OutcomeValue | None) -> Action | None:
    """torch's agent reported that the job failed. Publishes that as the outcome, unless the others have continued
    without this member."""
    if outcome is None:
        return None
    plan = view.store.plan
    if plan is None or not closes(view):
        return Exit(code=ExitCode.WORKERS_FAILED, reason=f"{outcome.message}; the other members may continue")
    return PublishOutcome(
        outcome=dataclasses.replace(outcome, round=plan.round),
        expected_mod_revision=plan.mod_revision,
        reason=outcome.message,
    )


def closes(view: View) -> bool:
    """Whether a failure on this node ends the job. It does not if the workers failed because another member was lost;
    then the others continue."""
    plan = view.store.plan
    if plan is None or any(one.value.suspect != view.settings.me for one in view.store.suspicions):
        return False
    if plan.round > view.workers.round:
        return plan.rank is not None and plan.value.reason is PlanReason.WORKER_FAILED
    return True


def _leave_when_finished(view: View, agent: TorchAgent) -> Action | None:
    """Leaves if this member's workers have finished but the others must restart: torch's agent cannot restart finished
    workers."""
    plan = view.store.plan
    if (
        agent.phase is not AgentPhase.FINISHED
        or plan is None
        or (plan.round <= agent.round and not _is_broken(view, plan))
    ):
        return None
    if view.me is not None and view.me.value.state is not MemberState.LEAVING:
        return PublishState(
            state=MemberState.LEAVING,
            round=agent.round,
            reason="all workers on this node have finished; the other members continue",
        )
    return Exit(
        code=ExitCode.SUCCEEDED, reason="all workers on this node have finished; the other members finish the job"
    )


def _is_broken(view: View, plan: Plan) -> bool:
    """Whether this member is the planner and the plan can no longer continue."""
    if view.store.role is not Role.PLANNER or plan.ranks is None:
        return False
    there = {
        (member.name, member.value.incarnation)
        for member in view.store.members.values()
        if member.value.state is not MemberState.LEAVING
    }
    return bool(view.store.failures) or any((name, rank.incarnation) not in there for name, rank in plan.ranks.items())


def _report_slow_stop(view: View, agent: TorchAgent, now: float) -> Action | None:
    """Marks this member as leaving if torch's agent takes too long to stop its workers, so that the others do not wait,
    and as ready again once they have stopped."""
    me = view.me
    if me is None:
        return None
    state = me.value.state
    if agent.phase is AgentPhase.STOPPING and state is MemberState.READY and now >= agent.changed_at + STOP_TIMEOUT:
        reason = f"the workers have not stopped within {STOP_TIMEOUT:g} s; the other members continue without this one"
        return PublishState(state=MemberState.LEAVING, round=agent.round, reason=reason)
    if agent.phase is AgentPhase.WAITING and state is MemberState.LEAVING:
        return PublishState(
            state=MemberState.READY, round=agent.round, stores=view.stores, reason="the workers have stopped"
        )
    return None


def _stop_deadline(view: View, agent: TorchAgent) -> float | None:
    """When `_keep_time` has something to do (monotonic, s); None: it has not."""
    waits = agent.phase is AgentPhase.STOPPING and view.me is not None and view.me.value.state is MemberState.READY
    return agent.changed_at + STOP_TIMEOUT if waits else None


def is_spare(view: View) -> bool:
    """Whether this member is a spare: the current plan does not include it, and it waits until a member is missing."""
    plan = view.store.plan
    return plan is not None and plan.rank is None
