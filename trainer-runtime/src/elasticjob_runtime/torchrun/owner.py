"""The state of torch's agent, and the rendezvous' side of it: the runner calls the owner to observe it and to request
starts and stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elasticjob_runtime.contract import ExitCode, FailureValue, OutcomeValue, ProgressValue
from elasticjob_runtime.membership import View
from elasticjob_runtime.membership.actions import Action, Exit, MoveWorkers, StartWorkers, StopWorkers
from elasticjob_runtime.membership.view import StoreView
from elasticjob_runtime.rendezvous.member import LocalState
from elasticjob_runtime.torchrun.policy import AgentPhase, TorchAgent, next_action
from elasticjob_runtime.torchrun.steps import WorkerSteps


class AgentOwner:
    """Implements RunnerOwner. The runner's thread and the threads that call `Member` share it: hold `changed` to read
    or write a field, and notify it after a write."""

    def __init__(self, me: str, publish: Callable[[ProgressValue], None], *, shared: bool) -> None:
        """`publish`: the optimizer steps. `shared`: workers may use the member's stores too."""
        self._me = me
        self._publish = publish
        self.steps = WorkerSteps()
        self._shared = shared
        self.changed = threading.Condition()
        self.agent = TorchAgent()
        self.outcome: OutcomeValue | None = None
        """How torch's agent says that the job ended."""
        self.leaving_since: float | None = None
        self.closing = False

    def leave(self) -> None:
        """A signal ends torch's agent."""
        with self.changed:
            self.leaving_since = self.leaving_since or time.monotonic()

    def failure(self, message: str) -> FailureValue:
        """The failure that stands for workers that torch's agent has stopped."""
        rank = self.agent.plan.rank if self.agent.plan else None
        return FailureValue(
            member=self._me,
            round=self.agent.round,
            rank=rank.group_rank if rank else 0,
            local_rank=0,
            exit_code=1,
            reason="WorkersStopped",
            message=message,
            time=time.time(),
        )

    # -- RunnerOwner, called by the runner; `decide` is called with `changed` held

    def state(self) -> LocalState:
        return LocalState(workers=self.agent.workers, stores=self._shared, leaving_since=self.leaving_since)

    def tick(self, now: float) -> None:
        """torch's agent watches the workers; only their steps are of interest."""
        progress = self.steps.progress(now, ended=self.agent.phase is not AgentPhase.RUNNING)
        plan = self.agent.plan
        if progress is not None and plan is not None and plan.value.leader == self._me:
            self._publish(progress)

    @property
    def deadline(self) -> float | None:
        return self.steps.due

    def decide(self, view: View, now: float) -> Action:
        if self.closing:
            return Exit(code=ExitCode.SUCCEEDED, reason="this member leaves the rendezvous")
        return next_action(view, self.agent, self.outcome, now)

    def start_workers(self, action: StartWorkers, now: float) -> None:
        self._set_agent(self.agent.start(action.plan, now))

    def stop_workers(self, action: StopWorkers, now: float) -> None:
        self._set_agent(self.agent.stop(self.failure(action.reason), now))

    def move_workers(self, action: MoveWorkers, now: float) -> None:
        """Never decided here: torch's agent cannot keep its workers."""
        raise NotImplementedError

    def store_changed(self, _before: StoreView, _view: StoreView) -> None:
        with self.changed:
            self.changed.notify_all()

    def _set_agent(self, agent: TorchAgent) -> None:
        with self.changed:
            self.agent = agent
            self.changed.notify_all()
