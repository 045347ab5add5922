"""One member of a job under torchrun: a thread that observes, decides (`policy.next_action`) and executes.

torch's agent runs on the main thread and calls the public methods, none of which makes a network call. The lease, the
store's watch and the store's calls have their own threads, so heartbeats continue whatever torch's agent does.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from elasticjob_runtime.contract import ExitCode, OutcomeValue
from elasticjob_runtime.etcd.interface import Store, StoreError
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership.actions import Exit
from elasticjob_runtime.membership.view import Plan
from elasticjob_runtime.rendezvous.config import MemberConfig
from elasticjob_runtime.rendezvous.runner import MemberRunner
from elasticjob_runtime.torchrun.owner import AgentOwner
from elasticjob_runtime.torchrun.policy import closes, is_spare
from elasticjob_runtime.torchrun.signals import LEAVE_SIGNALS, ends_the_agent
from elasticjob_runtime.torchrun.stale_run import clear_ended_run

logger = logging.getLogger(__name__)


class EndedError(Exception):
    """This member's part in the job is over."""

    def __init__(self, exit_: Exit) -> None:
        super().__init__(exit_.reason)
        self.code = exit_.code


class TorchrunMember:
    """Public methods may be called from any thread."""

    def __init__(self, config: MemberConfig, store: Store, ports: Sequence[int], *, shared: bool) -> None:
        """`ports`: the ports of the stores that listen. `shared`: workers may use these stores too."""
        self._config = config
        self._store = store
        self._event_loop = EventLoop()
        self._owner = AgentOwner(
            config.settings.me,
            lambda progress: self._runner.session.publish_progress(progress),  # noqa: PLW0108 made later
            shared=shared,
        )
        self._changed = self._owner.changed
        self._exit: Exit | None = None
        """Guarded by `_changed`."""
        # Used only by the event loop's thread.
        self._signals: int | None = None
        self._runner = MemberRunner(config, store, self._event_loop, self._owner, ports=ports, lock=self._changed)
        self._thread = threading.Thread(target=self._run, name="etcd-v3-member", daemon=True)

    def start(self, signals: int | None = None) -> None:
        """`signals`: a descriptor that is readable when a signal has arrived (signal.set_wakeup_fd)."""
        self._signals = signals
        if signals is not None:
            self._event_loop.add_reader(signals, self._read_signals)
        self._runner.start()
        self._thread.start()

    # -- called by torch's agent

    def on_rejoin(self) -> None:
        """torch's agent has called next_rendezvous() and has no workers."""
        with self._changed:
            self._owner.agent = self._owner.agent.on_rejoin(
                self._owner.failure("torchrun restarts its workers; see its log for the cause"), time.monotonic()
            )
        self.wake()

    def next_plan(self) -> Plan:
        """Waits for a plan that includes this member. Raises EndedError, and TimeoutError after `join_timeout`; for a
        spare there is no timeout."""
        deadline = time.monotonic() + self._config.join_timeout
        with self._changed:
            while True:
                if self._exit is not None:
                    raise EndedError(self._exit)
                plan = self._owner.agent.plan
                if plan is not None and self._owner.agent.is_in(plan.round):
                    return plan
                left = None if is_spare(self._runner.loop.view()) else deadline - time.monotonic()
                if left is not None and left <= 0:
                    why = self._runner.loop.executor.trouble or self._runner.loop.reason
                    raise TimeoutError(f"no training after {self._config.join_timeout:g} s (join_timeout): {why}")
                self._changed.wait(left)

    def run(self, round_number: int) -> bool:
        """All members of the round have met. Returns False if the round is already over."""
        with self._changed:
            self._owner.agent = self._owner.agent.run(round_number, time.monotonic())
            runs = self._exit is None and self._owner.agent.is_in(round_number)
            if runs:
                self._owner.steps.starting(round_number, time.monotonic())
        self.wake()
        return runs

    def finish(self) -> None:
        """All workers on this node have exited with 0."""
        with self._changed:
            self._owner.agent = self._owner.agent.finish(time.monotonic())
        self.wake()

    def wants_restart(self) -> bool:
        with self._changed:
            plan = self._owner.agent.plan
            return self._exit is not None or (plan is not None and not self._owner.agent.is_in(plan.round))

    def outcome(self) -> OutcomeValue | None:
        with self._changed:
            return self._runner.loop.store_view.outcome

    def closes(self) -> bool:
        """Whether a failure on this node would end the job."""
        with self._changed:
            return self._exit is None and closes(self._runner.loop.view())

    def conclude(self, outcome: OutcomeValue, *, gone: bool) -> None:
        """torch's agent declares the job over. `gone`: the agent and its workers have ended too."""
        with self._changed:
            self._owner.outcome = outcome
            if gone:
                self._owner.agent = self._owner.agent.on_rejoin(self._owner.failure(outcome.message), time.monotonic())
        self.wake()

    def wait_while(self, round_number: int, until: Callable[[], bool]) -> bool:
        """Waits until `until()` is true (call `wake` when it may have changed) or the round is over. Returns
        `until()`."""
        with self._changed:
            self._changed.wait_for(lambda: until() or self._is_over(round_number))
            return until()

    def is_over_within(self, round_number: int, timeout: float | None) -> bool:
        """Waits for the end of the round, at most `timeout` s (None: no limit). Returns whether it is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over(round_number), timeout)

    def wait_for_end(self, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._exit is not None, timeout)

    def wake(self) -> None:
        """Wakes the event loop and all waiting threads, to look at what has changed."""
        with self._changed:
            self._changed.notify_all()
        self._event_loop.call_soon(lambda: None)

    def close(self, timeout: float = 3.0) -> None:
        """Revokes the lease, so that the others continue at once. Idempotent."""
        with self._changed:
            self._owner.closing = True
        self.wake()
        self._thread.join(timeout)

    def _is_over(self, round_number: int) -> bool:
        return self._exit is not None or not self._owner.agent.is_in(round_number)

    # -- the thread

    def _run(self) -> None:
        try:
            self._begin()
            exit_ = self._runner.run()
        except Exception as error:
            logger.exception("the rendezvous thread failed")
            exit_ = Exit(code=ExitCode.INTERNAL, reason=f"internal error: {error!r}")
        self._runner.close()
        with self._changed:
            self._exit = exit_
            self._changed.notify_all()

    def _begin(self) -> None:
        try:
            if clear_ended_run(self._store, self._config.keys):
                logger.info("the job that had this --rdzv-id before has ended: starting a new run")
        except StoreError:
            pass  # registering fails for the same reason and reports it

    def _read_signals(self) -> None:
        """On a signal that ends torch's agent, announces this member's leave at once rather than after the workers have
        saved."""
        assert self._signals is not None
        for number in os.read(self._signals, 256):
            if number in LEAVE_SIGNALS and ends_the_agent(signal.getsignal(number)):
                self._owner.leave()
