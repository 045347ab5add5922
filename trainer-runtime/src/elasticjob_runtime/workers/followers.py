"""The local worker processes that can continue under another plan: what each was told, and how far it is.

The messages are described in training/session/port.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from elasticjob_runtime.contract import Env
from elasticjob_runtime.membership.view import Plan

ACK_TIMEOUT = 2.0
"""s for a worker process to say that it has heard of a plan. A thread of its own does that, whatever the training does:
a process that does not is frozen."""

ARRIVE_TIMEOUT = 30.0
"""s for a worker process to end or interrupt its step and meet the others, which wait for it. Longer: an evaluation
between two steps may take longer. Shorter: one that is stuck in a kernel holds up the others for less."""

EVALUATION_SHARE = 2 / 3
"""Of `arrive_timeout`: how long a planned change waits for the end of an evaluation, which others would repeat."""

END_PATIENCE = 0.5
"""s that the last step may take to end before it is interrupted."""

START_TIMEOUT = 1800.0
"""s for a worker process that others wait for to start and take its first batch: as long as `init_process_group` waits
by default. It may be loading a large model."""

START = "start and take its first batch"

HEARD, ARRIVED, FORMED, ENTERED = "heard", "arrived", "formed", "entered"
WAITING, FAILED = "waiting", "failed"
"""How far a worker process is with a plan; see training/session/port.py."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """What a worker process reports of a plan."""

    local_rank: int
    state: str
    round: int
    attempt: str
    at: float
    """Unix time, s."""
    why: str = ""
    """How the world broke, if the state is FAILED."""


@dataclasses.dataclass(slots=True)
class _Follower:
    alone: bool = False
    """It started in a world of its own."""
    connected: bool = False
    proven: bool = False
    """It has entered a world, or waits to."""
    due: float | None = None
    """Monotonic time at which it is killed unless it has reported."""
    late: str = ""
    """Why it is killed then."""
    saves_at_end: bool = False
    state: str = ""
    """What it last reported of the newest plan."""
    why: str = ""
    round: int = 0
    """Of the newest plan that it was told."""

    def expect(self, what: str, seconds: float, now: float) -> None:
        """`what`: what it does within `seconds`, or is killed; 0: it has any time."""
        self.due = now + seconds if seconds else None
        self.late = f"did not {what} within {seconds:g} s"


class Followers:
    """Keyed by local rank. Not thread-safe: use it on the agent's event loop only."""

    def __init__(
        self,
        send: Callable[[int, Mapping[str, Any]], None],
        *,
        ack_timeout: float = ACK_TIMEOUT,
        arrive_timeout: float = ARRIVE_TIMEOUT,
    ) -> None:
        """`send`: sends a message to the worker of a local rank. A timeout of 0 means no limit."""
        self._send = send
        self._ack_timeout = ack_timeout
        self._arrive_timeout = arrive_timeout
        self._followers: dict[int, _Follower] = {}
        self._attempt = ""

    @property
    def deadline(self) -> float | None:
        return min((each.due for each in self._followers.values() if each.due is not None), default=None)

    def can_hear(self, local_rank: int) -> bool:
        """Whether the process has said that it can continue under another plan."""
        return local_rank in self._followers and self._followers[local_rank].connected

    @property
    def movable(self) -> bool:
        """Whether no process needs a restart for the next plan."""
        return all(each.proven or each.alone for each in self._followers.values())

    @property
    def proven(self) -> int:
        """How many processes have shown that they can continue."""
        return sum(each.proven for each in self._followers.values())

    def count(self, state: str) -> int:
        """How many processes last reported `state` of the newest plan."""
        return sum(each.state == state for each in self._followers.values())

    @property
    def why_failed(self) -> str:
        """How the world of the newest plan broke, as one of them has reported; empty: it has not."""
        return next((each.why for each in self._followers.values() if each.state == FAILED), "")

    def overdue(self, now: float) -> dict[int, str]:
        """Local ranks that did not report in time, each once, with what each did not do."""
        late = [rank for rank, each in self._followers.items() if each.due is not None and now >= each.due]
        for rank in late:
            self._followers[rank].due = None
        return {rank: self._followers[rank].late for rank in late}

    def clear(self) -> None:
        self._followers.clear()

    def starts(self, local_rank: int, now: float, *, alone: bool, awaited: bool) -> None:
        """A process for `local_rank` starts. `alone`: in a world of its own. `awaited`: others wait for it."""
        self._followers[local_rank] = _Follower(alone=alone)
        if awaited:
            self._followers[local_rank].expect(START, START_TIMEOUT, now)

    def others_wait(self, now: float) -> None:
        """A plan includes the processes: from now on others wait also for those that still start."""
        for each in self._followers.values():
            if not each.proven and each.alone and each.due is None:
                each.expect(START, START_TIMEOUT, now)

    def ended(self, local_rank: int, *, done: bool = False) -> None:
        """`done`: with code 0. If it had not entered the world of the newest plan, that world cannot be
        formed."""
        follower = self._followers.pop(local_rank, None)
        if done and follower is not None and follower.proven and follower.state != ENTERED:
            self._followers[local_rank] = _Follower(alone=True, state=FAILED)

    def said_hello(self, local_rank: int) -> None:
        """The process can continue. The caller then tells it the current plan."""
        self._followers.setdefault(local_rank, _Follower()).connected = True

    def saves_at_end(self, local_rank: int) -> None:
        """The process saves before its last world ends."""
        if local_rank in self._followers:
            self._followers[local_rank].saves_at_end = True

    def can_save_at_end(self, local_rank: int) -> bool:
        return self.can_hear(local_rank) and self._followers[local_rank].saves_at_end

    def is_waiting(self, local_rank: int) -> bool:
        return local_rank in self._followers and self._followers[local_rank].state == WAITING

    def tell_end(self, local_rank: int, saves: bool, now: float) -> None:
        """The world of the newest plan is the last one, and ends at the end of the step."""
        follower = self._followers[local_rank]
        follower.state = ""
        follower.expect("respond to the end", self._ack_timeout, now)
        self._send(
            local_rank,
            {
                "type": "plan", "in_place": True, "round": follower.round, "attempt": self._attempt,
                "patience": END_PATIENCE, "environment": None, "ends": True, "saves": saves,
            },
        )  # fmt: skip

    def tell(
        self, local_rank: int, plan: Plan, patience: float, environment: Mapping[str, str] | None, now: float
    ) -> None:
        """Sends `plan`. `environment`: the process's in it; None: it is not in the plan."""
        self._attempt = plan.value.attempt
        follower = self._followers[local_rank]
        follower.state, follower.round = "", plan.round
        if follower.proven:  # one that still starts has more time
            follower.expect("respond to a plan", self._ack_timeout, now)
        chosen = None if environment is None else {
            name: environment[name] for name in Env.SET_BY_AGENT if name in environment
        }  # fmt: skip
        self._send(
            local_rank,
            {
                "type": "plan", "in_place": True, "round": plan.round, "attempt": plan.value.attempt,
                "patience": patience, "environment": chosen,
                "evaluation_patience": EVALUATION_SHARE * (self._arrive_timeout or START_TIMEOUT) if patience else 0.0,
            },
        )  # fmt: skip

    def reported(self, report: PlanReport, now: float) -> bool:
        """Takes a report. Returns False if it is about an earlier plan."""
        follower = self._followers.get(report.local_rank)
        if follower is None or report.attempt != self._attempt:
            return False
        follower.state, follower.why = report.state, report.why
        if report.state != HEARD:
            follower.due = None
            follower.proven = follower.proven or report.state in (ENTERED, WAITING)
        elif follower.proven:
            follower.expect("end its step", self._arrive_timeout, now)
        return True
