"""The phases of torch's agent."""

from __future__ import annotations

import pytest
from elasticjob_runtime.membership.view import WorkersState
from elasticjob_runtime.torchrun.policy import AgentPhase

from tests.unit.runtime.torchrun.builders import NOW, STOPPED, agent, plan


class TestTorchAgent:
    """The phases, and what moves torch's agent from one to the next."""

    @pytest.mark.parametrize(
        ("before", "step", "after"),
        [
            (AgentPhase.WAITING, "on_rejoin", AgentPhase.WAITING),
            (AgentPhase.MEETING, "on_rejoin", AgentPhase.MEETING),
            (AgentPhase.RUNNING, "on_rejoin", AgentPhase.WAITING),
            (AgentPhase.STOPPING, "on_rejoin", AgentPhase.WAITING),
            (AgentPhase.WAITING, "start", AgentPhase.MEETING),
            (AgentPhase.RUNNING, "start", AgentPhase.RUNNING),
            (AgentPhase.FINISHED, "start", AgentPhase.FINISHED),
            (AgentPhase.MEETING, "stop", AgentPhase.WAITING),
            (AgentPhase.RUNNING, "stop", AgentPhase.STOPPING),
            (AgentPhase.FINISHED, "stop", AgentPhase.FINISHED),
            (AgentPhase.MEETING, "run", AgentPhase.RUNNING),
            (AgentPhase.WAITING, "run", AgentPhase.WAITING),
            (AgentPhase.STOPPING, "run", AgentPhase.STOPPING),
            (AgentPhase.RUNNING, "finish", AgentPhase.FINISHED),
            (AgentPhase.STOPPING, "finish", AgentPhase.FINISHED),
            (AgentPhase.WAITING, "finish", AgentPhase.WAITING),
        ],
    )
    def test_each_step_leads_to_its_phase(self, before: AgentPhase, step: str, after: AgentPhase) -> None:
        torch = agent(before, plan(1, "a"))
        steps = {
            "on_rejoin": lambda: torch.on_rejoin(STOPPED, NOW),
            "start": lambda: torch.start(plan(2, "a"), NOW),
            "stop": lambda: torch.stop(STOPPED, NOW),
            "run": lambda: torch.run(1, NOW),
            "finish": lambda: torch.finish(NOW),
        }
        assert steps[step]().phase is after

    def test_an_earlier_round_cannot_run(self) -> None:
        torch = agent(AgentPhase.MEETING, plan(2, "a"))
        assert torch.run(1, NOW).phase is AgentPhase.MEETING
        assert torch.is_in(2)
        assert not torch.is_in(1)
        assert not torch.stop(STOPPED, NOW).is_in(2)

    def test_a_new_plan_clears_the_failure(self) -> None:
        torch = agent(AgentPhase.RUNNING, plan(1, "a")).on_rejoin(STOPPED, NOW)
        assert torch.workers.state is WorkersState.FAILED
        assert torch.workers.failure is STOPPED
        assert torch.start(plan(2, "a"), NOW).workers.failure is None
