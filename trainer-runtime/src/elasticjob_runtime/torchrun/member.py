"""One member of a job under torchrun: a thread that observes, lets `policy.next_action` decide, and executes.

torch's agent has the main thread and calls the public methods; they never wait for a network. The lease, the store's
watch and the calls to the store have threads of their own, so heartbeats go on whatever torch's agent does.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from elasticjob_runtime.contract import ExitCode, FailureValue, MemberValue, OutcomeValue
from elasticjob_runtime.etcd.interface import Store, StoreError
from elasticjob_runtime.event_loop import EventLoop
from elasticjob_runtime.membership import View
from elasticjob_runtime.membership.actions import (
    Action,
    Exit,
    ProbePeers,
    ProbeWitnesses,
    StartWorkers,
    StopWorkers,
    Wait,
)
from elasticjob_runtime.membership.view import (
    Plan,
    Probe,
    StoreView,
)
from elasticjob_runtime.rendezvous.config import MemberConfig
from elasticjob_runtime.rendezvous.executor import StoreExecutor
from elasticjob_runtime.rendezvous.heartbeat import Heartbeats
from elasticjob_runtime.rendezvous.peers import PeerServer, probe_in_background
from elasticjob_runtime.rendezvous.session import Rendezvous
from elasticjob_runtime.rendezvous.witnesses import ask_in_background
from elasticjob_runtime.torchrun.policy import TorchAgent, closes, is_spare, next_action
from elasticjob_runtime.torchrun.stale_run import clear_ended_run

logger = logging.getLogger(__name__)

_NEVER = float("inf")


class Ended(Exception):
    """This member's part in the job is over."""

    def __init__(self, exit_: Exit) -> None:
        super().__init__(exit_.reason)
        self.code = exit_.code


class Member:
    """Public methods may be called from any thread."""

    def __init__(self, config: MemberConfig, store: Store, ports: Sequence[int], *, shared: bool) -> None:
        """`ports`: of stores that listen. `shared`: workers may use these stores too."""
        settings = config.settings
        self._config = config
        self._store = store
        self._shared = shared
        self._event_loop = EventLoop()
        self._peers = PeerServer(settings.me, settings.incarnation, config.port_range)
        self._heartbeats = Heartbeats(self._event_loop)
        member = MemberValue(
            address=config.address,
            ports=list(ports),
            nproc=settings.nproc,
            incarnation=settings.incarnation,
            peer_port=self._peers.port,
            started_at=time.time(),
        )
        self._rendezvous = Rendezvous(
            store,
            config.keys,
            settings.me,
            member,
            lease_ttl=config.lease_ttl,
            on_view=lambda view: self._event_loop.call_soon(lambda: self._saw(view)),
            on_done=lambda action, error: self._event_loop.call_soon(
                lambda: self._executor.done(action, error, started=self._agent.round > 0)
            ),
            on_trouble=lambda error: self._event_loop.call_soon(lambda: self._executor.tell_trouble(error)),
        )
        self._executor = StoreExecutor(self._rendezvous.submit, lambda _trouble: None)
        # Shared with the threads that call in; guarded by `_changed`.
        self._changed = threading.Condition()
        self._agent = TorchAgent()
        self._store_view = StoreView()
        self._verdict: OutcomeValue | None = None
        self._leaving: float | None = None
        self._closing = False
        self._exit: Exit | None = None
        self._said = ""
        # The loop's own.
        self._signals: int | None = None
        self._probes: dict[str, Probe] = {}
        self._probing = False
        self._witnesses_probed_at: float | None = None
        self._witness_answered_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="etcd-v3-member", daemon=True)

    def start(self, signals: int | None = None) -> None:
        """`signals`: readable when a signal has come (signal.set_wakeup_fd)."""
        self._signals = signals
        if signals is not None:
            self._event_loop.add_reader(signals, self._read_signals)
        self._event_loop.add_reader(self._peers.fileno(), self._greet)
        self._rendezvous.start()
        self._thread.start()

    # -- what torch's agent says and asks

    def come_back(self) -> None:
        """It is in next_rendezvous, and has no workers."""
        with self._changed:
            self._agent = self._agent.come_back(
                self._failure("torchrun restarts its workers; see its log for the cause"), time.monotonic()
            )
        self.wake()

    def next_plan(self) -> Plan:
        """Waits for a plan with this member in it. Raises Ended, and TimeoutError after `join_timeout`; spares wait as
        long as it takes."""
        deadline = time.monotonic() + self._config.join_timeout
        with self._changed:
            while True:
                if self._exit is not None:
                    raise Ended(self._exit)
                plan = self._agent.plan
                if plan is not None and self._agent.is_in(plan.round):
                    return plan
                left = None if is_spare(self._view()) else deadline - time.monotonic()
                if left is not None and left <= 0:
                    why = self._executor.trouble or self._said
                    raise TimeoutError(f"no training after {self._config.join_timeout:g} s (join_timeout): {why}")
                self._changed.wait(left)

    def run(self, round_number: int) -> bool:
        """All members have met in the round of `round`. False: it is over already."""
        with self._changed:
            self._agent = self._agent.run(round_number, time.monotonic())
            return self._exit is None and self._agent.is_in(round_number)

    def finish(self) -> None:
        """All workers here have exited with 0."""
        with self._changed:
            self._agent = self._agent.finish(time.monotonic())
        self.wake()

    def wants_restart(self) -> bool:
        with self._changed:
            plan = self._agent.plan
            return self._exit is not None or (plan is not None and not self._agent.is_in(plan.round))

    def outcome(self) -> OutcomeValue | None:
        with self._changed:
            return self._store_view.outcome

    def closes(self) -> bool:
        """Would a failure here be the job's?"""
        with self._changed:
            return self._exit is None and closes(self._view())

    def conclude(self, verdict: OutcomeValue, *, gone: bool) -> None:
        """The job is over, says torch's agent. `gone`: it has ended itself, and its workers."""
        with self._changed:
            self._verdict = verdict
            if gone:
                self._agent = self._agent.come_back(self._failure(verdict.message), time.monotonic())
        self.wake()

    def wait_while(self, round_number: int, until: Callable[[], bool]) -> bool:
        """Waits until `until()` is true (call `wake` when it may be), or the round of `round` is over. Returns
        `until()`."""
        with self._changed:
            self._changed.wait_for(lambda: until() or self._is_over(round_number))
            return until()

    def is_over_within(self, round_number: int, timeout: float | None) -> bool:
        """Waits for the end of the round of `round`, at most `timeout` s."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over(round_number), timeout)

    def wait_for_end(self, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._exit is not None, timeout)

    def wake(self) -> None:
        """Something has changed that the loop or a waiting thread looks at."""
        with self._changed:
            self._changed.notify_all()
        self._event_loop.call_soon(lambda: None)

    def close(self, timeout: float = 3.0) -> None:
        """Gives the lease back, so that the others go on at once. Idempotent."""
        with self._changed:
            self._closing = True
        self.wake()
        self._thread.join(timeout)

    def _is_over(self, round_number: int) -> bool:
        return self._exit is not None or not self._agent.is_in(round_number)

    # -- the loop

    def _run(self) -> None:
        try:
            self._begin()
            exit_ = self._loop()
        except Exception as error:
            logger.exception("the rendezvous thread failed")
            exit_ = Exit(code=ExitCode.INTERNAL, reason=f"internal error: {error!r}")
        self._rendezvous.close()
        self._heartbeats.close()
        self._peers.close()
        with self._changed:
            self._exit = exit_
            self._changed.notify_all()

    def _begin(self) -> None:
        try:
            if clear_ended_run(self._store, self._config.keys):
                logger.info("the job that had this --rdzv-id before has ended: starting anew")
        except StoreError:
            pass  # registering meets the same trouble, and tells

    def _loop(self) -> Exit:
        while True:
            now = time.monotonic()
            self._heartbeats.tick(now)
            with self._changed:
                if self._closing:
                    return Exit(code=ExitCode.SUCCEEDED, reason="closed")
                action = self._executor.fatal or next_action(self._view(), self._agent, self._verdict, now)
                self._say(action)
            if isinstance(action, Exit):
                return action
            until = self._execute(action, now)
            if until is not None:
                beat = self._heartbeats.deadline
                until = until if beat is None else min(until, beat)
                self._event_loop.wait(None if until == _NEVER else max(0.0, until - time.monotonic()))

    def _view(self) -> View:
        heard = self._heartbeats.heard()
        return View(
            settings=self._config.settings,
            store=self._store_view,
            workers=self._agent.workers,
            probes=self._probes,
            lease_expires_at=self._rendezvous.lease_expires_at,
            silent=self._heartbeats.silent(self._event_loop.now()),
            silent_since=self._heartbeats.silent_since(self._event_loop.now()),
            witnesses_probed_at=self._witnesses_probed_at,
            witness_answered_at=self._witness_answered_at,
            peer_round=heard[0],
            peer_round_at=heard[1],
            stores=self._shared,
            reported_failure=self._executor.reported_failure,
            leaving_since=self._leaving,
        )

    def _execute(self, action: Action, now: float) -> float | None:
        """Does it. Returns until when to wait for what comes; None: decide again at once."""
        until = _NEVER if action.until is None else action.until
        match action:
            case Wait():
                return until
            case StartWorkers() | StopWorkers():
                self._command(action, now)
                return None
            case ProbePeers():
                if not self._probing:
                    self._probing = True
                    probe_in_background(
                        action.members, lambda found: self._event_loop.call_soon(lambda: self._probed(found))
                    )
                return until
            case ProbeWitnesses():
                self._probe_witnesses(now)
                return until
            case _:
                return self._executor.execute(action, now, until)  # type: ignore[arg-type]  # everything else is handled above

    def _command(self, action: StartWorkers | StopWorkers, now: float) -> None:
        with self._changed:
            if isinstance(action, StartWorkers):
                self._agent = self._agent.start(action.plan, now)
            else:
                self._agent = self._agent.stop(self._failure(action.reason), now)
            self._changed.notify_all()

    def _failure(self, message: str) -> FailureValue:
        rank = self._agent.plan.rank if self._agent.plan else None
        return FailureValue(
            member=self._config.settings.me,
            round=self._agent.round,
            rank=rank.group_rank if rank else 0,
            local_rank=0,
            exit_code=1,
            reason="WorkersStopped",
            message=message,
            time=time.time(),
        )

    def _say(self, action: Action) -> None:
        if action.reason != self._said:
            self._said = action.reason
            logger.info("%s", action.reason)

    # -- observations, all on the loop's thread

    def _greet(self) -> None:
        for connection in self._peers.greet():
            self._heartbeats.add_listener(connection)

    def _saw(self, view: StoreView) -> None:
        with self._changed:
            self._store_view = view
            self._changed.notify_all()
        self._heartbeats.round = self._peers.round = view.plan.round if view.plan is not None else 0
        rank = view.plan.rank if view.plan is not None else None
        if rank is not None:
            self._heartbeats.follow(rank.neighbours, self._event_loop.now())

    def _probe_witnesses(self, now: float) -> None:
        self._witnesses_probed_at = now

        def told(answered: bool) -> None:
            if answered:
                self._witness_answered_at = now

        ask_in_background(self._config.witnesses, lambda answered: self._event_loop.call_soon(lambda: told(answered)))

    def _probed(self, found: Mapping[str, Probe]) -> None:
        self._probing = False
        self._probes.update(found)
        for name, probe in found.items():
            if not probe.reachable:
                logger.info("%s does not answer", name)

    def _read_signals(self) -> None:
        """A signal that ends torch's agent: tell the others at once, not when the workers have saved."""
        assert self._signals is not None
        for number in os.read(self._signals, 256):
            if number in LEAVE_SIGNALS and ends_the_agent(signal.getsignal(number)):
                with self._changed:
                    self._leaving = self._leaving or time.monotonic()


LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def ends_the_agent(handler: object) -> bool:
    """Is it torch's handler, Python's own for Ctrl-C, or ours? Whoever has another one decides for himself what a
    signal means."""
    module = getattr(handler, "__module__", "") or ""
    return handler is signal.default_int_handler or module.startswith(
        ("torch.distributed.elastic.", "elasticjob_runtime.")
    )
