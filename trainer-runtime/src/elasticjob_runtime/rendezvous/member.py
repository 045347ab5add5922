"""The loop around `membership.decide`: observe, decide, execute.

MemberLoop has no thread, no socket and no clock of its own, so the same loop runs in an agent and under torchrun (both
through runner.py), in the rendezvous benchmark (a thousand members in a few processes) and in the simulation (virtual
time).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from elasticjob_runtime.contract import ExitCode, Neighbour
from elasticjob_runtime.etcd.interface import StoreError
from elasticjob_runtime.membership import View, decide
from elasticjob_runtime.membership.actions import (
    Action,
    Exit,
    MoveWorkers,
    ProbeOutside,
    ProbePeers,
    StartWorkers,
    StopWorkers,
    StoreAction,
    Wait,
)
from elasticjob_runtime.membership.silence import limits
from elasticjob_runtime.membership.view import Member, MemberSettings, Probe, StoreView, Workers, WorkersState
from elasticjob_runtime.rendezvous.executor import StoreExecutor

logger = logging.getLogger(__name__)

NEVER = float("inf")
"""A deadline that never comes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LocalState:
    """The part of a View that the owner of the worker processes provides."""

    workers: Workers
    warm: bool = True
    stores: bool = False
    step: int | None = None
    stepped: int | None = None
    leaving_since: float | None = None
    leaving_code: ExitCode = ExitCode.TERMINATED


class MemberOwner(Protocol):
    """Starts and stops the worker processes of a member."""

    def state(self) -> LocalState: ...

    def decide(self, view: View, now: float) -> Action:
        """`membership.decide`, with the owner's own rules around it."""
        ...

    def start_workers(self, action: StartWorkers, now: float) -> None: ...

    def stop_workers(self, action: StopWorkers, now: float) -> None: ...

    def move_workers(self, action: MoveWorkers, now: float) -> None: ...


class MemberIO(Protocol):
    """How a member reaches the store, its peers and the outside hosts. No method blocks."""

    @property
    def lease_expires_at(self) -> float | None: ...

    def submit(self, action: StoreAction) -> None:
        """Starts to execute `action`; a call of MemberLoop.done follows."""
        ...

    def probe(
        self, members: Sequence[Member], timeout: float, on_result: Callable[[Mapping[str, Probe]], None]
    ) -> None:
        """Waits `timeout` seconds for an answer."""
        ...

    def probe_outside(self, on_result: Callable[[bool], None]) -> None: ...


class NeighbourMonitor(Protocol):
    """Heartbeats of the neighbours in rank order; see heartbeat.Heartbeats."""

    silent_after: float
    """Seconds without a heartbeat."""

    def silent(self, now: float) -> frozenset[str]: ...

    def silent_since(self, now: float) -> float | None: ...

    def peer_round(self) -> tuple[int, float]: ...

    def follow(self, neighbours: Sequence[Neighbour], now: float) -> None: ...


class DecisionCache:
    """Repeats the last decision to wait as long as nothing has changed.

    With thousands of members a decision takes milliseconds, and heartbeats and workers' reports wake the loop many
    times a second.
    """

    def __init__(self) -> None:
        self._last: tuple[View, Wait] | None = None

    def decide(self, view: View, now: float) -> Action:
        # While workers run, no rule reads the step: only their failure makes it matter.
        seen = dataclasses.replace(view, step=None) if view.workers.state is WorkersState.RUNNING else view
        last = self._last
        if last is not None and last[0] == seen and (last[1].until is None or now < last[1].until):
            return last[1]
        action = decide(view, now)
        self._last = (seen, action) if isinstance(action, Wait) else None
        return action


class MemberLoop:
    """The loop of one member. Not thread-safe: its driver calls `decide` and then `execute`, until `execute` returns a
    time to wait until."""

    def __init__(
        self,
        settings: MemberSettings,
        owner: MemberOwner,
        io: MemberIO,
        heartbeats: NeighbourMonitor,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_trouble: Callable[[str], None] = lambda _trouble: None,
    ) -> None:
        """`on_trouble` is called with the store error's text whenever it changes; empty: the store works again."""
        self.settings = settings
        self._owner = owner
        self._io = io
        self._heartbeats = heartbeats
        self._clock = clock
        self.executor = StoreExecutor(io.submit, on_trouble, clock)
        self.store_view = StoreView()
        self.reason = ""
        """The reason of the last action."""
        self._probes: Mapping[str, Probe] = {}
        self._probing = False
        self._outside_probed_at: float | None = None
        self._outside_answered_at: float | None = None

    def view(self) -> View:
        local, now = self._owner.state(), self._clock()
        peer_round, peer_round_at = self._heartbeats.peer_round()
        return View(
            settings=self.settings,
            store=self.store_view,
            workers=local.workers,
            probes=self._probes,
            lease_expires_at=self._io.lease_expires_at,
            silent=self._heartbeats.silent(now),
            silent_since=self._heartbeats.silent_since(now),
            outside_probed_at=self._outside_probed_at,
            outside_answered_at=self._outside_answered_at,
            peer_round=peer_round,
            peer_round_at=peer_round_at,
            warm=local.warm,
            stores=local.stores,
            reported_failure=self.executor.reported_failure,
            step=local.step,
            stepped=local.stepped,
            leaving_since=local.leaving_since,
            leaving_code=local.leaving_code,
        )

    def decide(self, now: float) -> Action:
        """Returns the next action. After an Exit, the member has no more part in the job."""
        action = self.executor.fatal or self._owner.decide(self.view(), now)
        if action.reason != self.reason:
            self.reason = action.reason
            logger.info("%s", action.reason)
        return action

    def execute(self, action: Action, now: float) -> float | None:
        """Returns the time until which to wait for a change (NEVER: no limit); None: decide again at once."""
        until = NEVER if action.until is None else action.until
        match action:
            case Wait() | Exit():
                return until
            case StartWorkers():
                self._owner.start_workers(action, now)
                return None
            case StopWorkers():
                self._owner.stop_workers(action, now)
                return None
            case MoveWorkers():
                self._owner.move_workers(action, now)
                return None
            case ProbePeers():
                if not self._probing:
                    self._probing = True
                    self._io.probe(action.members, action.timeout, self._probed)
                return until
            case ProbeOutside():
                self._probe_outside(now)
                return until
            case _:
                return self.executor.execute(action, now, until)  # type: ignore[arg-type]  # a StoreAction

    def observe(self, view: StoreView) -> None:
        """Takes a new view of the store."""
        self.store_view = view
        self._heartbeats.silent_after = limits(view.plan.value if view.plan is not None else None).heartbeat
        if view.plan is not None and view.plan.rank is not None:
            self._heartbeats.follow(view.plan.rank.neighbours, self._clock())

    def done(self, action: StoreAction, error: StoreError | None) -> None:
        """The store has executed `action`, or failed to with `error`."""
        self.executor.done(action, error, started=self._owner.state().workers.round > 0)

    def _probed(self, found: Mapping[str, Probe]) -> None:
        self._probing = False
        self._probes = {**self._probes, **found}  # not changed in place: the cached decision saw the old one
        for name, probe in found.items():
            if not probe.reachable:
                logger.info("%s does not answer", name)

    def _probe_outside(self, now: float) -> None:
        self._outside_probed_at = now

        def answered(yes: bool) -> None:
            if yes:
                self._outside_answered_at = now

        self._io.probe_outside(answered)
