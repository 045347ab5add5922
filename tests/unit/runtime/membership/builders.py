"""Small builders of views, and `describe(action)`: an action in a few words, for readable tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticjob_runtime.contract import (
    FailureValue,
    MemberState,
    MemberValue,
    Neighbour,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    RankValue,
    SpecValue,
    StopValue,
    SuspicionValue,
)
from elasticjob_runtime.membership import decide
from elasticjob_runtime.membership.actions import (
    Action,
    AmendPlan,
    AssignReplicas,
    Exit,
    MoveWorkers,
    ProbeOutside,
    ProbePeers,
    ProposePlan,
    ProposeStop,
    PublishFailure,
    PublishOutcome,
    PublishState,
    PublishSuspicion,
    PublishUnready,
    Register,
    RestorePlan,
    StartWorkers,
    StopWorkers,
    Subscribe,
    Wait,
)
from elasticjob_runtime.membership.view import (
    Member,
    MemberSettings,
    Plan,
    Probe,
    Role,
    Stop,
    StoreView,
    Suspicion,
    View,
    Workers,
    WorkersState,
)

NOW = 1000.0
PLAN_REVISION = 100


def make_member(name: str, **fields: Any) -> Member:
    """Registered long ago, in alphabetical order. `create`, `seen_at`, `ready_at` and all fields of
    MemberValue."""
    create = fields.pop("create", 10 + ord(name[0]) - ord("a"))
    seen_at = fields.pop("seen_at", NOW - 100)
    ready_at = fields.pop("ready_at", seen_at)
    value = {
        "address": f"10.0.0.{ord(name[0])}",
        "ports": [1, 2, 3, 4],
        "nproc": 1,
        "incarnation": f"{name}1",
        "state": MemberState.READY,
        "peer_port": 7,
    }
    return Member(
        name=name, create_revision=create, value=MemberValue(**{**value, **fields}), seen_at=seen_at, ready_at=ready_at
    )


def members(names: str, **changed: Mapping[str, Any]) -> dict[str, Member]:
    """`members("abc", b={"state": LEAVING})`."""
    return {name: make_member(name, **changed.get(name, {})) for name in names}


_OF_PLAN = {field.name for field in dataclasses.fields(PlanValue)}


def make_plan(names: str, *, round_number: int = 1, me: str = "a", **fields: Any) -> Plan:
    """The plan with these members in rank order, as the planner sees it. `restarts`, `revision`, `ranks`; `joined`,
    by name; all fields of PlanValue."""
    size = fields.get("size", len(names))
    ring = names * 2
    ranks = {
        name: RankValue(
            group_rank=rank,
            incarnation=f"{name}1",
            joined=fields.get("joined", {}).get(name, fields.get("oldest", 0)),
            predecessor=names[rank - 1] if rank else "",
            neighbours=tuple(
                Neighbour(name=name, incarnation=f"{name}1", address="10.0.0.1", peer_port=7)
                for name in ring[rank + 1 : rank + 1 + min(2, len(names) - 1)]
            ),
        )
        for rank, name in enumerate(names)
    }
    value: dict[str, Any] = {
        "round": round_number, "attempt": f"{round_number:08d}.{names[0]}", "size": size, "world_size": size,
        "master_addr": "10.0.0.1", "master_port": 1, "leader": names[0], "nproc": 1,
        "restart_count": fields.get("restarts", 0), "reason": PlanReason.START,
        **{name: fields[name] for name in _OF_PLAN & fields.keys()},
    }  # fmt: skip
    known = fields.get("ranks", ranks)
    return Plan(
        value=PlanValue(**value), mod_revision=fields.get("revision", PLAN_REVISION), rank=ranks.get(me), ranks=known,
        replica=fields.get("replica"),
    )  # fmt: skip


def runs(plan: Plan, state: WorkersState = WorkersState.RUNNING, **fields: Any) -> Workers:
    return Workers(state=state, round=plan.round, plan=plan, changed_at=fields.pop("changed_at", NOW - 50), **fields)


def make_failure(
    member: str,
    *,
    round_number: int = 1,
    rank: int = 0,
    time: float = 0.0,
    message: str = "boom",
    reason: str = "ApplicationError",
    joining: bool = False,
) -> FailureValue:
    return FailureValue(
        member=member,
        round=round_number,
        rank=rank,
        local_rank=0,
        exit_code=1,
        reason=reason,
        message=message,
        time=time,
        joining=joining,
    )


def fails(plan: Plan, member: str = "a", *, ago: float = 0.0) -> Workers:
    failure = make_failure(member, round_number=plan.round)
    return runs(plan, WorkersState.FAILED, failure=failure, changed_at=NOW - ago)


def answers(
    names: str = "", *, silent: str = "", ago: float = 0.0, incarnation: str = "1", round_number: int = 0
) -> dict[str, Probe]:
    """These members answered to a probe, and the `silent` ones did not."""
    at = NOW - ago
    return {
        name: Probe(incarnation=name + incarnation, reachable=name in names, asked_at=at, at=at, round=round_number)
        for name in names + silent
    }


def suspicion(suspect: str, by: str, *, round_number: int = 1, ago: float = 0.0) -> Suspicion:
    return Suspicion(value=SuspicionValue(suspect=suspect, by=by, round=round_number), seen_at=NOW - ago)


def make_stop(plan: Plan, reason: PlanReason = PlanReason.MEMBER_JOINED, *, ago: float = 1.0, saver: str = "") -> Stop:
    return Stop(
        value=StopValue(attempt=plan.value.attempt, reason=reason, message="d joined", caused_at=7.0, saver=saver),
        seen_at=NOW - ago,
    )


_OF_STORE = {field.name for field in dataclasses.fields(StoreView)}


def make_view(
    *,
    me: str = "a",
    there: Mapping[str, Member] | str = "abc",
    plan: Plan | None = None,
    role: Role | None = Role.PLANNER,
    predecessor: str = "",
    workers: Workers | None = None,
    spec: SpecValue | None = None,
    failures: Sequence[FailureValue] = (),
    settings: Mapping[str, Any] | None = None,
    store: Mapping[str, Any] | None = None,
    **fields: Any,
) -> View:
    """What agent `me` sees: by default the planner of a job of 2 to 3 members. `store`: further fields of StoreView;
    `fields`: of either, or of View."""
    present = members(there) if isinstance(there, str) else there
    own = {"me": me, "incarnation": f"{me}1", "nproc": 1, "min": 2, "max": 3, "max_restarts": 3, **(settings or {})}
    seen = {
        "registered": me in present,
        "role": role,
        "predecessor": predecessor,
        "spec": spec,
        "plan": plan,
        "last_round": max(plan.round if plan else 0, workers.round if workers else 0),
        "members": present,
        "failures": tuple(failures),
        "failed_at": NOW - 10 if failures else 0.0,
        **(store or {}),
        **{name: fields.pop(name) for name in _OF_STORE & fields.keys()},
    }
    return View(
        settings=MemberSettings(**own),
        store=StoreView(**seen),
        workers=workers or (runs(plan) if plan else Workers()),
        **fields,
    )


_WORDS: dict[type[Action], Callable[[Any], str]] = {
    ProposePlan: lambda it: (
        f"plan {it.round}: {' '.join(member.name for member in it.members)}, {it.plan_reason.value}, "
        f"{it.restart_count} restarts{', in place' if it.in_place else ''}"
        + (f", finished early: {' '.join(it.finished)}" if it.finished else "")
    ),
    ProbeOutside: lambda _it: "probe outside hosts",
    ProbePeers: lambda it: (
        "probe " + " ".join([member.name for member in it.members] + ["for 0.4 s"] * (it.timeout < 1))
    ),
    PublishOutcome: lambda it: (
        f"outcome {it.outcome.state.value}"
        + (f" because of {it.outcome.failure['member']}" if it.outcome.failure else "")
    ),
    RestorePlan: lambda it: f"restore plan {it.plan.round}",
    AssignReplicas: lambda it: "; ".join(
        f"replica {orders[0].index} in world {orders[0].world}: {' '.join(member.name for member in part)}"
        for part, orders in it.parts
    ),
    AmendPlan: lambda it: f"mark plan {it.plan.round} as continuing in place",
    StartWorkers: lambda it: f"start plan {it.plan.round}" + (" alone" if it.alone else ""),
    MoveWorkers: lambda it: f"move to plan {it.plan.round}" + (f", {it.step_grace:g} s" if it.step_grace else ""),
    StopWorkers: lambda it: (
        ("stop, " + "all leave, " * it.last + "saves for all, " * it.saves + f"{it.grace:g} s to save")
        if it.grace
        else "stop"
    ),
    Register: lambda it: f"register {it.state.value} of round {it.round}",
    ProposeStop: lambda it: f"stop for {it.stop.reason.value}" + f", {it.stop.saver} saves" * bool(it.stop.saver),
    PublishUnready: lambda it: (
        f"unready: {' '.join(it.unready.members)} since {it.unready.since:g}" if it.unready else "none is unready"
    ),
    PublishState: lambda it: (
        f"publish {it.state.value} of round {it.round}"
        + ("" if it.saves is None else ", saves")
        + ("" if it.saved is None else f", saved {it.saved}")
        + ("" if it.in_place is None else f", in place {it.in_place}")
        + ("" if it.failed is None else f", failed {it.failed}")
        + ("" if it.world_over is None else f", world {it.world_over} over")
        + ("" if it.cut_from is None else f", cut from {it.cut_from or 'none'}")
        + ("" if it.replica is None else f", in replica {it.replica.index}, world {it.replica.world}")
    ),
    PublishFailure: lambda it: f"report {it.failure.member}" + ", joining" * it.failure.joining,
    PublishSuspicion: lambda it: ("clear " if it.retract else "suspect ") + it.suspicion.suspect,
    Subscribe: lambda it: f"watch as {it.role.value}" + (f" of {it.predecessor}" if it.predecessor else ""),
    Exit: lambda it: f"exit {it.code.name}",
    Wait: lambda it: "wait" + (f" {it.until - NOW:g} s" if it.until is not None else ""),
}


def describe(action: Action | None) -> str:
    """The action in words: `plan 2: a c, MemberLost, 0 restarts`."""
    return _WORDS[type(action)](action) if action is not None else "nothing"


def decided(view: View) -> str:
    """What `decide` does with the view, in words, and whether it fails to say why."""
    action = decide(view, NOW)
    return describe(action) if len(action.reason) > 5 else f"{describe(action)}, without a reason"


SUCCEEDED = OutcomeValue(state=OutcomeState.SUCCEEDED, reason="WorkersSucceeded")
FAILED = OutcomeValue(state=OutcomeState.FAILED, reason="MaxRestartsExceeded")


@dataclasses.dataclass(frozen=True)
class Case:
    view: View
    does: str


def case(does: str, **fields: Any) -> Case:
    """What is done with a view of these fields (`make_view`)."""
    return Case(make_view(**fields), does)
