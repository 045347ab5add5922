"""The life of a worker group: what an event changes, and what is done for it."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from elasticjob_runtime.contract import PEER_LOST, FailureValue, ReplicaValue
from elasticjob_runtime.membership.view import Plan, WorkersState
from elasticjob_runtime.workers.effects import (
    AskToSave,
    CancelStarts,
    Effect,
    GiveUp,
    RequestStacks,
    SendEnd,
    SendPlan,
    Signal,
    StartProcesses,
)
from elasticjob_runtime.workers.environment import ACK_TIMEOUT, ARRIVE_TIMEOUT, GroupSpec
from elasticjob_runtime.workers.state_machine import (
    ARRIVED,
    CAUSE_GRACE,
    ENTERED,
    FAILED,
    HANG,
    HEARD,
    STACKS_SECONDS,
    STALL,
    START_TIMEOUT,
    STOPPED,
    UNRESPONSIVE,
    WAITING,
    GroupState,
    PlanReport,
    Step,
)

from tests.unit.runtime.membership.builders import make_plan

NONE, RUNNING, STOPPING = WorkersState.NONE, WorkersState.RUNNING, WorkersState.STOPPING
DIED, SUCCEEDED = WorkersState.FAILED, WorkersState.SUCCEEDED
PLAN, NEXT = (
    dataclasses.replace(plan, rank=plan.ranks["a"])
    for plan in (make_plan("ab"), make_plan("ab", round_number=2))
    if plan.ranks
)
FAILURE = FailureValue(
    member="a", round=1, rank=0, local_rank=0, exit_code=1, reason="ApplicationError", message="x", time=10.0,
    traceback="line 1",
)  # fmt: skip
LOST = dataclasses.replace(FAILURE, reason=PEER_LOST, message="a peer is gone", time=9.0)
HUNG = dataclasses.replace(FAILURE, reason=HANG, message="no progress", time=8.0, traceback="")
GRACE = 7.0


class Group:
    """Carries out events, one after the other, and keeps the effects."""

    def __init__(self, nproc: int = 2, **settings: Any) -> None:
        spec = GroupSpec(run_id="run", role="default", nproc=nproc, max_restarts=0, **settings)
        self.state = GroupState(spec=spec)
        self.effects: list[Effect] = []

    def do(self, step: Step) -> list[Effect]:
        self.state, effects = step
        self.effects += effects
        return effects

    def start(self, plan: Plan = PLAN, *, alone: bool = False) -> Group:
        self.do(self.state.start(plan, 0.0, alone=alone))
        return self.started()

    def started(self) -> Group:
        for number in self.state.processes:
            self.state = self.state.started(number)
        return self

    def entered(self, *local_ranks: int) -> Group:
        for number in local_ranks:
            self.do(self.state.said_hello(number, 0.0))
            self.report(number, ENTERED, PLAN)
        return self

    def report(self, local_rank: int, state: str, plan: Plan, now: float = 0.0, why: str = "") -> list[Effect]:
        report = PlanReport(
            local_rank=local_rank, state=state, round=plan.round, attempt=plan.value.attempt, at=0.0, why=why
        )
        return self.do(self.state.reported(report, now))

    def exit(self, local_rank: int, now: float = 5.0) -> list[Effect]:
        return self.do(self.state.exited(local_rank, now))

    def fail(self, local_rank: int, now: float = 5.0, failure: FailureValue = FAILURE, **found: Any) -> list[Effect]:
        return self.do(self.state.exited(local_rank, now, failure, **found))

    def call_for_save(self, *ranks: int) -> Group:
        for rank in ranks:
            self.do(self.state.calls_for_save(rank, 1, 1.0))
        return self

    def stop(self, grace: float = GRACE, *, handling: Collection[int] = (), last: bool = False) -> list[Effect]:
        """What is done besides the end of all starts."""
        step = self.state.stop(grace, 1.0, handling=handling, catching=handling, last=last, saves=True)
        cancel, *effects = self.do(step)
        assert cancel == CancelStarts()
        return effects


def killed(*local_ranks: int) -> Signal:
    return Signal(signal.SIGKILL, frozenset(local_ranks))


def terminated(*local_ranks: int) -> Signal:
    return Signal(signal.SIGTERM, frozenset(local_ranks))


LIVES: dict[str, tuple[Sequence[str], WorkersState]] = {
    "it runs": (["start"], RUNNING),
    "one has ended, the other trains": (["start", "exit 0"], RUNNING),
    "all have ended": (["start", "exit 0", "exit 1"], SUCCEEDED),
    "one has failed: the other is killed": (["start", "fail 0"], STOPPING),
    "one has failed, and all have ended": (["start", "fail 0", "exit 1"], DIED),
    "one has lost a peer: which one is not clear yet": (["start", "lose 0"], RUNNING),
    "one has lost a peer, and no cause is found": (["start", "lose 0", "tick"], STOPPING),
    "one has lost a peer, which fails": (["start", "lose 0", "fail 1"], DIED),
    "all have lost a peer": (["start", "lose 0", "lose 1"], RUNNING),
    "all have lost a peer, and no cause is found": (["start", "lose 0", "lose 1", "tick"], DIED),
    "they hang: they write their stacks": (["start", "hang"], RUNNING),
    "they hang, and are killed": (["start", "hang", "tick"], STOPPING),
    "a hang before a process runs does not count": (["begin", "hang", "tick"], RUNNING),
    "they hang, and are stopped": (["start", "hang", "stop", "exit 0", "exit 1"], NONE),
    "one of several that continue has failed": (["start", "enter", "fail 0"], RUNNING),
    "all that continue have failed": (["start", "enter", "fail 0", "fail 1"], DIED),
    "it is stopped": (["start", "stop"], STOPPING),
    "it is stopped, and all have ended": (["start", "stop", "exit 0", "exit 1"], NONE),
    "it is stopped before a process runs": (["begin", "stop"], NONE),
    "a failure while it is stopped does not count": (["start", "stop", "fail 0", "exit 1"], NONE),
    "it is stopped when it has ended": (["start", "exit 0", "exit 1", "stop"], SUCCEEDED),
    "it is stopped after a failure": (["start", "fail 0", "stop", "exit 1"], DIED),
    "a start has failed, and no process runs": (["begin", "cannot start"], DIED),
    "a start has failed: the others are killed": (["start", "cannot start"], STOPPING),
    "it moves": (["start", "enter", "move"], RUNNING),
    "it starts again": (["start", "fail 0", "exit 1", "start"], RUNNING),
}


@pytest.mark.parametrize(("events", "state"), LIVES.values(), ids=LIVES)
def test_the_state_follows_from_the_events(events: Sequence[str], state: WorkersState) -> None:
    group = Group()
    happen: dict[str, Callable[[int], object]] = {
        "begin": lambda _: group.do(group.state.start(PLAN, 0.0, alone=False)),
        "cannot start": lambda _: group.do(group.state.could_not_start(FAILURE, 5.0)),
        "enter": lambda _: group.entered(0, 1),
        "exit": group.exit,
        "fail": group.fail,
        "hang": lambda _: group.do(group.state.hung(HUNG, 5.0)),
        "lose": lambda number: group.fail(number, failure=LOST),
        "move": lambda _: group.do(group.state.move(NEXT, 0.0, 5.0)),
        "start": lambda _: group.start(),
        "stop": lambda _: group.stop(),
        "tick": lambda _: group.do(group.state.tick(10.0)),
    }
    for event in events:
        name = event.rstrip(" 01")
        happen[name](int(event.removeprefix(name) or 0))
    assert group.state.view.state is state


def test_it_has_not_ended_while_it_is_undecided_which_process_failed_first() -> None:
    group = Group().start()
    assert group.fail(0, failure=LOST) == []
    group.exit(1)
    assert (group.state.view.state, group.state.deadline) == (RUNNING, 5.0 + CAUSE_GRACE)
    group.do(group.state.tick(5.0 + CAUSE_GRACE))
    failure = group.state.view.failure
    assert (group.state.view.state, group.state.deadline) == (DIED, None)
    assert failure is not None
    assert (failure.rank, failure.reason) == (1, LOST.reason), "it left the other one, and comes after other causes"
    assert failure.message == f"rank 1 exited with code 0 while the others train; rank 0: {LOST.message}"


@pytest.mark.parametrize(
    ("recorded", "reported"),
    [
        pytest.param([], LOST, id="no other has failed"),
        pytest.param([FAILURE], FAILURE, id="another one has written its error, which is the cause"),
    ],
)
def test_a_process_that_lost_a_peer_is_reported_only_if_no_cause_is_found_in_time(
    recorded: list[FailureValue], reported: FailureValue
) -> None:
    group = Group(nproc=3).start()
    group.fail(0, failure=LOST)
    assert group.do(group.state.tick(5.0 + CAUSE_GRACE - 0.1, recorded=recorded)) == []
    assert group.do(group.state.tick(5.0 + CAUSE_GRACE, recorded=recorded)) == [CancelStarts(), killed(1, 2)]
    assert group.state.view.failure == reported


def test_a_failure_counts_from_when_it_happened_and_a_stop_from_the_last_end() -> None:
    failed, stopped = Group().start(), Group().start()
    failed.fail(0, 5.0)
    failed.exit(1, 9.0)
    stopped.stop()
    stopped.exit(0, 5.0)
    stopped.exit(1, 9.0)
    assert (failed.state.view.changed_at, stopped.state.view.changed_at) == (5.0, 9.0)


def test_a_cause_ends_the_wait_for_one() -> None:
    group = Group(nproc=3).start()
    group.fail(0, failure=LOST)
    assert group.fail(1, 5.1, FAILURE) == [CancelStarts(), killed(2)]
    assert (group.state.view.failure, group.state.view.changed_at) == (FAILURE, 5.1)
    group = Group(nproc=3).start()
    assert group.fail(0, failure=LOST, recorded=[FAILURE]) == [CancelStarts(), killed(1, 2)], "it is known already"


def test_more_processes_that_lost_a_peer_do_not_prolong_the_wait() -> None:
    group = Group(nproc=3).start()
    group.fail(0, 5.0, LOST)
    group.fail(1, 5.2, LOST)
    assert group.state.deadline == 5.0 + CAUSE_GRACE


def test_a_failure_kills_the_others_and_drops_those_that_start() -> None:
    group = Group(nproc=3)
    group.do(group.state.start(PLAN, 0.0, alone=False))
    for number in (0, 1):
        group.state = group.state.started(number)
    assert group.fail(0) == [CancelStarts(), killed(1)]
    assert set(group.state.processes) == {1}


def test_processes_that_continue_do_not_wait_for_the_cause_of_a_failure() -> None:
    group = Group().start().entered(0, 1)
    assert group.fail(0, failure=LOST) == []
    view = group.state.view
    assert (view.state, view.failure, view.incomplete, group.state.deadline) == (RUNNING, LOST, True, None)


def test_a_hang_is_the_failure_of_the_process_that_the_others_wait_for_even_if_it_has_ended() -> None:
    group = Group().start()
    group.exit(1)
    assert group.state.hung_process({1}) == (1, 1)
    assert group.state.hung_process({5}) == (0, 0), "on another machine: any that runs"
    assert group.state.hung_process(()) == (0, 0)


def test_processes_that_hang_have_time_to_write_their_stacks() -> None:
    group = Group().start()
    assert group.do(group.state.hung(HUNG, 5.0)) == [RequestStacks(frozenset({0, 1}))]
    assert group.do(group.state.hung(HUNG, 5.1)) == [], "once"
    assert group.state.deadline == 5.0 + STACKS_SECONDS
    group.do(group.state.tick(5.0 + STACKS_SECONDS, stacks="line 3"))
    assert group.state.view.failure == dataclasses.replace(HUNG, traceback="line 3")
    assert group.do(group.state.hung(HUNG, 6.0)) == [], "it is over"


def test_a_process_that_ends_while_others_write_their_stacks_failed_because_they_hang() -> None:
    group = Group().start()
    group.do(group.state.hung(HUNG, 5.0))
    assert group.fail(0, stacks="line 3") == [CancelStarts(), killed(1)]
    assert group.state.view.failure == dataclasses.replace(HUNG, traceback="line 3")


# -- processes that a signal has stopped

TIMEOUT = 2.0
A, B, NO_PROCESS = {0: "SIGSTOP"}, {1: "SIGTSTP"}, dict[int, str]()
LATE = TIMEOUT + STALL
"""s after which an agent that looks again stood still itself."""

LOOKS: dict[str, tuple[Sequence[tuple[float, dict[int, str]]], list[int]]] = {
    "no process is stopped": ([(0.0, NO_PROCESS), (2.0, NO_PROCESS)], []),
    "stopped for less than the timeout": ([(0.0, A), (1.9, A)], []),
    "stopped for the timeout": ([(0.0, A), (2.0, A)], [0]),
    "continued in time": ([(0.0, A), (1.0, NO_PROCESS), (2.0, NO_PROCESS)], []),
    "continued in time and stopped again": ([(0.0, A), (1.0, NO_PROCESS), (1.5, A), (2.0, A)], []),
    "each process has its own time": ([(0.0, A), (1.0, {**A, **B}), (2.0, {**A, **B})], [0]),
    "two at once": ([(0.0, {**A, **B}), (2.0, {**A, **B})], [0, 1]),
    "the agent stood still, too": ([(0.0, A), (LATE, A)], []),
    "the agent stood still, and it remains stopped": ([(0.0, A), (LATE, A), (LATE + 2.0, A)], [0]),
    "it is given up once": ([(0.0, A), (2.0, A), (2.1, A), (2.2, A)], []),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_process_counts_as_failed_once_it_has_been_stopped_for_the_timeout(name: str) -> None:
    looks, given_up = LOOKS[name]
    group = Group(stopped_timeout=TIMEOUT).start()
    *_, last = [group.do(group.state.looked_for_stopped(found, now)) for now, found in looks]
    names = {**A, **B}
    assert last == [GiveUp(number, STOPPED, f"stopped by {names[number]} for 2 s") for number in given_up]


def test_a_replacement_has_its_own_time() -> None:
    group = Group(stopped_timeout=TIMEOUT).start().entered(0, 1)
    group.do(group.state.looked_for_stopped(A, 0.0))
    group.fail(0, 1.0)
    group.do(group.state.move(NEXT, 0.0, 1.0))
    assert group.started().state.stopped_due is None
    assert group.do(group.state.looked_for_stopped(A, 2.0)) == []


def test_a_timeout_of_0_disables_it() -> None:
    group = Group(stopped_timeout=0.0).start()
    assert [group.do(group.state.looked_for_stopped(A, now)) for now in (0.0, 1000.0)] == [[], []]
    assert group.state.deadline is None


def test_there_is_a_deadline_only_while_a_process_is_stopped() -> None:
    group = Group(stopped_timeout=TIMEOUT).start()
    deadlines = [group.state.deadline]
    for now, found in ((10.0, A), (11.0, {**A, **B}), (11.5, B), (12.0, NO_PROCESS)):
        group.do(group.state.looked_for_stopped(found, now))
        deadlines.append(group.state.deadline)
    assert deadlines == [None, 12.0, 12.0, 13.0, None]


# -- plans


def test_a_plan_is_sent_to_those_that_can_continue_and_the_missing_start_alone() -> None:
    group = Group().start().entered(0, 1)
    group.fail(1)
    assert group.do(group.state.move(NEXT, 0.5, 6.0)) == [SendPlan(0, NEXT, 0.5), StartProcesses(NEXT, (1,), True)]
    group.started()
    assert group.do(group.state.said_hello(1, 7.0)) == [SendPlan(1, NEXT, 0.0)]
    assert group.do(group.state.move(NEXT, 0.0, 8.0)) == [], "it is known"


def test_no_plan_is_sent_to_a_process_that_ends_or_has_not_started() -> None:
    group = Group()
    group.do(group.state.start(PLAN, 0.0, alone=False))
    assert group.do(group.state.said_hello(0, 1.0)) == [], "it is not known to run"
    group.started()
    group.stop()
    assert group.do(group.state.said_hello(0, 2.0)) == [], "it is being stopped"
    group = Group().start()
    assert group.do(group.state.move(NEXT, 0.0, 5.0)) == [], "it has not said that it can continue"


def test_only_a_world_of_its_own_counts_as_a_round_that_is_not_trained_yet() -> None:
    alone, together = Group().start(alone=True).state.view, Group().start().state.view
    assert (alone.entered, together.entered) == (0, None)
    assert (alone.movable, together.movable) == (True, False), "they need a restart unless they were in a world"


def test_it_continues_in_place_once_all_have_entered_their_world() -> None:
    group = Group().start().entered(0)
    assert (group.state.view.in_place, group.state.view.movable) == (False, False)
    group.entered(1)
    assert (group.state.view.in_place, group.state.view.movable, group.state.view.trained_round) == (True, True, 1)
    group.do(group.state.move(NEXT, 0.0, 5.0))
    assert group.state.view.trained_round == 1
    group.report(0, ARRIVED, NEXT)
    assert group.state.view.movable, "it was in a world, whatever it reports of the next one"
    for number in (0, 1):
        group.report(number, ENTERED, NEXT)
    assert group.state.view.trained_round == 2


def test_a_world_that_cannot_be_formed_is_rejected_with_the_first_error() -> None:
    group = Group().start().entered(0, 1)
    group.do(group.state.move(NEXT, 0.0, 5.0))
    group.report(0, HEARD, NEXT, 5.5)
    assert group.report(1, FAILED, NEXT, 6.0, why="connection reset") == []
    group.report(0, FAILED, NEXT, 7.0, why="later")
    assert (group.state.view.rejected_at, group.state.view.rejected_why) == (6.0, "connection reset")


def test_reports_about_an_earlier_plan_are_ignored() -> None:
    group = Group().start().entered(0, 1)
    group.do(group.state.move(NEXT, 0.0, 5.0))
    before = group.state
    group.report(0, FAILED, PLAN)
    group.report(7, ENTERED, NEXT)
    assert group.state is before, "nor those of a process that is gone"


def test_a_process_that_is_done_before_it_enters_the_plan_leaves_a_world_that_cannot_be_formed() -> None:
    group = Group().start().entered(0, 1)
    group.do(group.state.move(NEXT, 0.0, 4.0))
    group.exit(0)
    assert (group.state.view.rejected_at, group.state.view.movable, group.state.finished) == (5.0, True, {0})
    assert group.do(group.state.move(dataclasses.replace(NEXT, mod_revision=9), 0.0, 6.0))[-1] == StartProcesses(
        dataclasses.replace(NEXT, mod_revision=9), (0,), True
    )
    assert (group.state.view.rejected_at, group.state.finished) == (None, set())


def test_a_process_that_is_done_leaves_the_others_in_their_world() -> None:
    entered, never = Group().start().entered(0, 1), Group().start()
    entered.exit(0)
    assert (entered.state.view.rejected_at, entered.state.view.in_place) == (None, False)
    never.exit(0)
    assert never.state.view.rejected_at is None, "it was in no world"


# -- what is not done in time


@pytest.mark.parametrize(
    ("heard", "settings", "due", "message"),
    [
        (False, {}, 10.0 + ACK_TIMEOUT, "did not respond to a plan within 2 s"),
        (True, {}, 10.5 + ARRIVE_TIMEOUT, "did not end its step within 30 s"),
        (False, {"ack_timeout": 600.0}, 610.0, "did not respond to a plan within 600 s"),
        (True, {"arrive_timeout": 600.0}, 610.5, "did not end its step within 600 s"),
        (False, {"ack_timeout": 0.0}, None, ""),
        (True, {"arrive_timeout": 0.0}, None, ""),
    ],
)
def test_a_process_that_does_not_follow_a_plan_in_time_is_given_up_once(
    heard: bool, settings: dict[str, float], due: float | None, message: str
) -> None:
    group = Group(nproc=1, **settings).start().entered(0)
    group.do(group.state.move(NEXT, 0.0, 10.0))
    if heard:
        group.report(0, HEARD, NEXT, 10.5)
    assert group.state.report_due == due
    if due is not None:
        assert group.do(group.state.tick(due - 0.1)) == []
        assert group.do(group.state.tick(due)) == [GiveUp(0, UNRESPONSIVE, message)]
        assert group.do(group.state.tick(due)) == []


def test_a_process_that_may_take_long_has_any_time() -> None:
    arrived, loading, starting = Group(nproc=1).start().entered(0), Group(nproc=1).start(), Group(nproc=1).start()
    arrived.do(arrived.state.move(NEXT, 0.0, 10.0))
    arrived.report(0, ARRIVED, NEXT, 10.5)
    assert arrived.state.report_due is None, "it has left its step"
    loading.do(loading.state.said_hello(0, 0.0))
    loading.report(0, HEARD, PLAN, 0.1)
    assert loading.state.report_due is None, "it loads its data before its first step"
    starting.do(starting.state.move(NEXT, 0.0, 5.0))
    assert starting.state.report_due is None, "it starts in the first world"


def test_a_replacement_that_others_wait_for_is_given_up_if_it_never_starts() -> None:
    group = Group(nproc=1)
    group.do(group.state.start(PLAN, 0.0, alone=True))
    assert group.do(group.state.tick(START_TIMEOUT)) == [], "it does not run yet"
    group = Group(nproc=1).start(alone=True)
    group.do(group.state.said_hello(0, 0.0))
    assert group.do(group.state.tick(START_TIMEOUT)) == [
        GiveUp(0, UNRESPONSIVE, "did not start and take its first batch within 1800 s")
    ]


def test_a_spare_that_others_begin_to_wait_for_is_given_up_if_it_never_starts() -> None:
    group = Group(nproc=1).start(dataclasses.replace(PLAN, rank=None), alone=True)
    group.do(group.state.move(dataclasses.replace(NEXT, rank=None), 0.0, 50.0))
    due = [group.state.report_due]
    for plan, now in ((NEXT, 100.0), (dataclasses.replace(NEXT, mod_revision=9), 200.0)):
        group.do(group.state.move(plan, 0.0, now))
        due.append(group.state.report_due)
    assert due == [None, 100.0 + START_TIMEOUT, 100.0 + START_TIMEOUT], "a further plan gives it no more time"


# -- saving


@pytest.mark.parametrize(
    ("handling", "on_request", "asked", "signalled"),
    [
        pytest.param([], [], [], [0, 1], id="no process saves: the signal ends all"),
        pytest.param([0, 1], [], [], [0, 1], id="all handle the signal"),
        pytest.param([0], [], [], [0], id="one handles it: the other may be needed for its step"),
        pytest.param([], [0, 1], [0, 1], [], id="all save on request"),
        pytest.param([], [1], [1], [], id="one saves on request: the other may be needed for its step"),
        pytest.param([0], [0, 1], [1], [0], id="a handler of the signal comes before a request"),
    ],
)
def test_only_processes_that_save_are_asked_or_signalled(
    handling: list[int], on_request: list[int], asked: list[int], signalled: list[int]
) -> None:
    group = Group().start().call_for_save(*on_request)
    assert group.stop(handling=handling) == [
        *(AskToSave(rank, GRACE) for rank in asked), terminated(*signalled),
    ]  # fmt: skip
    assert group.state.kill_at == 1.0 + GRACE
    assert group.do(group.state.tick(1.0 + GRACE - 0.1)) == []
    assert group.do(group.state.tick(1.0 + GRACE)) == [killed(0, 1)]
    assert group.do(group.state.calls_for_save(0, 1, 9.0)) == [], "it is too late"


def test_the_rest_are_killed_when_the_last_one_has_saved() -> None:
    group = Group(nproc=3).start().call_for_save(0, 1)
    group.stop()
    assert group.do(group.state.saved(0, 1)) == []
    assert group.exit(2) == [], "it never saved"
    assert group.exit(1) == [killed(0, 1)], "it ended instead"
    assert group.do(group.state.saved(0, 1)) == [], "once"


def test_processes_that_all_handle_the_signal_end_by_themselves() -> None:
    group = Group().start()
    group.stop(handling=[0, 1])
    assert [group.exit(0), group.exit(1)] == [[], []]


def test_those_that_save_at_the_end_of_their_last_world_are_told_and_waited_for() -> None:
    group = Group(nproc=3).start().entered(0, 1, 2)
    for number in (0, 1):
        group.state = group.state.saves_at_end(number)
    effects = group.stop(last=True)
    assert effects[:-1] == [SendEnd(0, PLAN, True), SendEnd(1, PLAN, False)]
    assert effects[-1] == terminated(), "no signal"
    assert group.state.report_due == 1.0 + ACK_TIMEOUT
    assert group.report(1, WAITING, PLAN) == []
    assert group.report(2, WAITING, PLAN) == [], "it was not told"
    assert group.report(0, HEARD, PLAN) == [], "it ends its step"
    assert group.report(0, WAITING, PLAN) == [killed(0, 1, 2)]


def test_if_all_save_at_the_end_of_their_last_world_none_gets_a_signal() -> None:
    group = Group().start().entered(0, 1)
    for number in (0, 1):
        group.state = group.state.saves_at_end(number)
    assert group.do(group.state.stop(GRACE, 1.0, last=True)) == [
        CancelStarts(), SendEnd(0, PLAN, False), SendEnd(1, PLAN, False), terminated(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("connected", "last", "handling"),
    [
        pytest.param(False, True, [], id="it cannot hear that its world ends"),
        pytest.param(True, False, [], id="others train on: it is no last world"),
        pytest.param(True, True, [0], id="its handler of the signal comes first"),
    ],
)
def test_the_end_of_a_world_is_told_only_to_those_that_end_with_it(
    connected: bool, last: bool, handling: list[int]
) -> None:
    group = Group(nproc=1).start().entered(*[0] * connected)
    group.state = group.state.saves_at_end(0)
    assert group.stop(last=last, handling=handling) == [terminated(0)]


def test_one_that_is_asked_to_save_has_not_saved_because_it_waits_for_a_world() -> None:
    group = Group().start().entered(0, 1).call_for_save(1)
    group.state = group.state.saves_at_end(0)
    assert group.stop(last=True)[:-1] == [SendEnd(0, PLAN, True), AskToSave(1, GRACE)]
    assert group.report(1, WAITING, PLAN) + group.report(0, WAITING, PLAN) == []
    assert group.do(group.state.saved(1, 1)) == [killed(0, 1)]


def test_a_process_outside_of_its_world_is_not_asked_to_save() -> None:
    group = Group().start().entered(0, 1).call_for_save(0, 1)
    for number in (0, 1):
        group.report(number, WAITING, PLAN)
    assert group.stop() == [terminated(0, 1)], "the signal ends them"


def test_one_that_first_asks_while_others_save_is_asked_with_the_time_that_remains() -> None:
    group = Group().start().call_for_save(0)
    group.stop()
    assert group.do(group.state.calls_for_save(1, 1, 3.0)) == [AskToSave(1, GRACE - 2.0)]
    assert group.do(group.state.saved(0, 1)) == []
    assert group.do(group.state.saved(1, 1)) == [killed(0, 1)]


def test_one_that_calls_for_a_save_is_asked_only_while_others_save_on_request() -> None:
    group = Group().start()
    assert [group.do(group.state.calls_for_save(rank, 1, 1.0)) for rank in (0, 1)] == [[], []], "the group runs"
    group = Group().start()
    group.stop(handling=[0])
    assert group.do(group.state.calls_for_save(1, 1, 3.0, handling=[0])) == [], "others save on the signal"


def test_one_that_handles_the_signal_or_has_ended_is_not_asked_to_save() -> None:
    group = Group(nproc=3).start().call_for_save(0)
    group.stop()
    assert group.do(group.state.calls_for_save(1, 1, 3.0, handling=[1])) == []
    group.exit(2)
    assert group.do(group.state.calls_for_save(2, 1, 3.0)) == []


def test_whether_a_process_saves_does_not_matter_any_more_once_the_group_is_stopped() -> None:
    group = Group().start()
    group.stop()
    assert group.state.found_handler() is group.state
    group.exit(0)
    assert group.state.saves_at_end(0) is group.state, "it has ended"


def test_what_is_said_of_another_round_does_not_count() -> None:
    group = Group().start()
    before = group.state
    assert group.do(group.state.calls_for_save(0, 7, 1.0)) + group.do(group.state.saved(0, 7)) == []
    assert group.state is before
    group.call_for_save(0)
    assert group.state.view.saves
    group.stop()
    assert group.do(group.state.saved(0, 7)) == []


def test_a_stop_without_time_kills_all_that_still_save() -> None:
    group = Group().start().call_for_save(0, 1)
    group.stop()
    assert group.stop(0.0) == [killed(0, 1)]
    assert (group.state.kill_at, group.state.view.saving) == (None, False)


# -- in a replica

IN_REPLICA, NEXT_IN_REPLICA = (
    dataclasses.replace(plan, replica=ReplicaValue(index=0, world=1, incarnation="a1", members=("a",)))
    for plan in (PLAN, NEXT)
)


def test_a_replica_ends_as_a_whole_when_one_of_its_processes_fails() -> None:
    group = Group().start(IN_REPLICA).entered(0, 1)
    assert group.fail(1) == [CancelStarts(), Signal(signal.SIGKILL, frozenset({0}))]
    assert group.state.view.failure == FAILURE  # at once, for the other replicas
    group.exit(0)
    assert group.state.view.state is DIED


@pytest.mark.parametrize(("size", "hello", "apart"), [(4, False, True), (4, True, False), (2, False, False)])
def test_replicas_whose_processes_have_no_session_train_apart(size: int, hello: bool, apart: bool) -> None:
    value = dataclasses.replace(PLAN.value, size=size, replica_size=2)
    group = Group().start(dataclasses.replace(IN_REPLICA, value=value))
    if hello:
        group.do(group.state.said_hello(0, 1.0))
    assert group.state.trains_apart is apart


def test_a_replica_whose_processes_have_ended_does_not_train_apart() -> None:
    value = dataclasses.replace(PLAN.value, size=4, replica_size=2)
    group = Group(nproc=1).start(dataclasses.replace(IN_REPLICA, value=value)).entered(0)
    group.fail(0, failure=LOST)
    assert group.state.view.state is RUNNING, "the cause is still looked for"
    assert not group.state.trains_apart


def test_no_process_of_a_replica_is_started_alone() -> None:
    group = Group().start(IN_REPLICA).entered(0, 1)
    group.exit(1)
    assert group.do(group.state.move(NEXT_IN_REPLICA, 0.5, 6.0)) == [SendPlan(0, NEXT_IN_REPLICA, 0.5)]


@pytest.mark.parametrize("told", [ReplicaValue(index=3, world=2, incarnation="a1", members=("a", "d")), None])
def test_processes_stay_in_the_world_of_the_replica_that_they_began_in(told: ReplicaValue | None) -> None:
    group = Group().start(IN_REPLICA).entered(0, 1)
    group.do(group.state.move(dataclasses.replace(NEXT, replica=told), 0.5, 6.0))
    assert group.state.view.plan == NEXT_IN_REPLICA
