"""The phases of torch's agent."""

from __future__ import annotations

import pytest
from elasticjob_runtime.membership.view import WorkersState
from elasticjob_runtime.torchrun.policy import Phase

from tests.unit.runtime.torchrun.builders import NOW, STOPPED, agent, plan


class TestTorchAgent:
    """The phases, and what moves torch's agent from one to the next."""

    @pytest.mark.parametrize(
        ("before", "step", "after"),
        [
            (Phase.WAITING, "on_rejoin", Phase.WAITING),
            (Phase.MEETING, "on_rejoin", Phase.MEETING),
            (Phase.RUNNING, "on_rejoin", Phase.WAITING),
            (Phase.STOPPING, "on_rejoin", Phase.WAITING),
            (Phase.WAITING, "start", Phase.MEETING),
            (Phase.RUNNING, "start", Phase.RUNNING),
            (Phase.FINISHED, "start", Phase.FINISHED),
            (Phase.MEETING, "stop", Phase.WAITING),
            (Phase.RUNNING, "stop", Phase.STOPPING),
            (Phase.FINISHED, "stop", Phase.FINISHED),
            (Phase.MEETING, "run", Phase.RUNNING),
            (Phase.WAITING, "run", Phase.WAITING),
            (Phase.STOPPING, "run", Phase.STOPPING),
            (Phase.RUNNING, "finish", Phase.FINISHED),
            (Phase.STOPPING, "finish", Phase.FINISHED),
            (Phase.WAITING, "finish", Phase.WAITING),
        ],
    )
    def test_each_step_leads_to_its_phase(self, before: Phase, step: str, after: Phase) -> None:
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
        torch = agent(Phase.MEETING, plan(2, "a"))
        assert torch.run(1, NOW).phase is Phase.MEETING
        assert torch.is_in(2)
        assert not torch.is_in(1)
        assert not torch.stop(STOPPED, NOW).is_in(2)

    def test_a_new_plan_clears_the_failure(self) -> None:
        torch = agent(Phase.RUNNING, plan(1, "a")).on_rejoin(STOPPED, NOW)
        assert torch.workers.state is WorkersState.FAILED
        assert torch.workers.failure is STOPPED
        assert torch.start(plan(2, "a"), NOW).workers.failure is None
