"""Values that a script may have written: each is read into its type or rejected with a reason, and none can stop
a plan."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from elasticjob_api import Status
from elasticjob_operator.etcd import values
from elasticjob_operator.etcd.run_keys import MAX_VALUES, RunKeys
from elasticjob_operator.etcd.values import MAX_LENGTH, parse
from elasticjob_operator.planning import plan
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Connectivity, JobState
from elasticjob_runtime.contract import (
    DEFAULT_PREFIX,
    NO_REPLICA,
    FailureValue,
    HangValue,
    Keys,
    OutcomeValue,
    PlanValue,
    ProgressValue,
    ReplicaValue,
    SpecValue,
    Value,
)
from elasticjob_runtime.etcd import Event, KeyValue
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.operator.builders import NOW, make_failure, make_job, make_outcome, make_plan, make_pod

GOOD: dict[type[Value], Value] = {
    SpecValue: SpecValue(min=1, max=4, wanted=2, draining=["a"]),
    PlanValue: make_plan(3),
    ProgressValue: ProgressValue(step=10**12, round=3, metrics={"loss": 0.5}, updated_at=1.0),
    OutcomeValue: make_outcome("failed", "WorkersFailed", failure=dataclasses.asdict(make_failure(1))),
    FailureValue: make_failure(1),
    ReplicaValue: ReplicaValue(index=1, world=2, incarnation="i", members=(make_pod(0).name, make_pod(1).name)),
    HangValue: HangValue(member=make_pod(0).name, round=3, since=1.0, why="rank 1 is in main (train.py:3)", ranks=(1,)),
}
KEYS = Keys(DEFAULT_PREFIX, "u-1")
WRONG: tuple[Any, ...] = (
    None,
    True,
    "2",
    "",
    -1,
    1.5,
    2**31,
    2**63,
    10**400,
    1e308,
    [],
    [[]],
    {},
    {"a": {}},
    "\ud800",
    "é" * 70,
    "a\nb",
)
"""Of each only those are taken that the field allows."""
kinds = st.sampled_from(list(GOOD))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def variant(kind: type[Value], field: str, value: Any) -> str:
    return json.dumps({**json.loads(GOOD[kind].to_json()), field: value})


@pytest.mark.parametrize("kind", GOOD)
def test_values_that_agents_write_are_parsed(kind: type[Value]) -> None:
    assert parse(kind, GOOD[kind].to_json()) == GOOD[kind]


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(
    "text", ["", "not json", "[]", "null", "[" * 100_000, '{"round":' * 5000, "9" * 5000, "{" + "}" * 3, "[]," * 90_000]
)
def test_invalid_values_are_rejected(kind: type[Value], text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(kind, text)


@pytest.mark.parametrize("kind", GOOD)
def test_a_value_that_is_too_long_is_rejected(kind: type[Value]) -> None:
    with pytest.raises(ValueError, match="longer than"):
        parse(kind, variant(kind, "unknown", "x" * MAX_LENGTH[kind]))


@pytest.mark.parametrize(("kind", "field"), [(kind, field.name) for kind in GOOD for field in dataclasses.fields(kind)])
def test_an_invalid_field_is_reported_and_keeps_no_plan(kind: type[Value], field: str) -> None:
    for wrong in WRONG:
        plans_with(kind, variant(kind, field, wrong), rounds=1)


@settings(max_examples=50)
@given(kind=kinds, text=st.text() | anything.map(json.dumps))
def test_any_text_is_parsed_or_rejected(kind: type[Value], text: str) -> None:
    plans_with(kind, text)


@settings(max_examples=50)
@given(kind=kinds, data=st.data(), value=anything)
def test_any_field_of_any_type_is_parsed_or_rejected(kind: type[Value], data: st.DataObject, value: Any) -> None:
    field = data.draw(st.sampled_from([field.name for field in dataclasses.fields(kind)]))
    plans_with(kind, variant(kind, field, value))


@settings(max_examples=30)
@given(failure=st.dictionaries(st.sampled_from([field.name for field in dataclasses.fields(FailureValue)]), anything))
@example(
    failure={
        "time": 1e300,
        "member": "a",
        "round": 1,
        "rank": 1,
        "local_rank": 0,
        "exit_code": 1,
        "reason": "x",
        "message": "",
    }
)
def test_an_outcome_counts_even_with_an_invalid_failure(failure: dict[str, Any]) -> None:
    text = variant(OutcomeValue, "failure", failure)
    assert parse(OutcomeValue, text).reason == "WorkersFailed"
    plans_with(OutcomeValue, text)


def plans_with(kind: type[Value], text: str, rounds: int = 2) -> None:
    """Whatever the value: `plan` plans, and its status is one that the API server takes, now and in the next round."""
    key = {
        SpecValue: KEYS.spec,
        PlanValue: KEYS.plan,
        ProgressValue: KEYS.progress,
        OutcomeValue: KEYS.outcome,
        FailureValue: KEYS.failure(3, "digits-worker-1"),
        HangValue: KEYS.hang("digits-worker-1"),
        ReplicaValue: KEYS.replicas + make_pod(0).name,
    }[kind]
    run = RunKeys(KEYS)
    there = {KEYS.plan: GOOD[PlanValue].to_json(), key: text}
    run.replace([KeyValue(name, value, 1, 1, 1) for name, value in there.items()], 1)
    view = run.view(Connectivity.REACHABLE)
    try:
        parse(kind, text)
    except ValueError:
        assert view.unreadable
        assert len(view.unreadable) <= 300
        view.unreadable.encode()
    job = make_job()
    for _ in range(rounds):
        world = JobState(pods=tuple(make_pod(index, ready=True) for index in range(4)), rendezvous=view, nodes=None)
        decided = plan(job, world, Settings(), NOW)
        written = json.loads(json.dumps(decided.status.to_api(), allow_nan=False).encode())
        job = job.model_copy(update={"status": Status.model_validate(written)})


def test_a_lone_surrogate_does_not_hide_the_rest() -> None:
    found = parse(FailureValue, variant(FailureValue, "message", "caf\udce9 \ud800 \U0001f600"))
    assert found.message == "caf? ? \U0001f600"


def test_only_the_last_of_many_values_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    run, texts = RunKeys(KEYS), list[str]()
    real = values.parse

    def count(kind: type[Value], text: str) -> Value:
        texts.append(text)
        return real(kind, text)

    monkeypatch.setattr(values, "parse", count)
    for step in range(1000):
        run.apply(Event(KEYS.progress, ProgressValue(step=step, round=1).to_json(), step + 1, 1))
    progress = run.view(Connectivity.REACHABLE).progress
    assert progress is not None
    assert progress.step == 999
    assert len(texts) == 1


def test_counted_steps_are_not_taken_for_reported_ones() -> None:
    run, counted = RunKeys(KEYS), ProgressValue(step=0, round=1, optimizer_steps=9)
    run.apply(Event(KEYS.progress, counted.to_json(), 1, 1))
    view = run.view(Connectivity.REACHABLE)
    assert (view.progress, view.counted) == (None, counted)


def test_members_of_a_replica_are_known_until_they_belong_to_none() -> None:
    run, one = RunKeys(KEYS), ReplicaValue(index=1, world=2, incarnation="i", members=("a", "b"))
    two = dataclasses.replace(one, ordinal=1)
    for number, value in enumerate((one, two)):
        run.apply(Event(KEYS.replicas + "ab"[number], value.to_json(), number + 1, 1))
    assert run.view(Connectivity.REACHABLE).replicas == {"a": one, "b": two}
    run.apply(Event(KEYS.replicas + "a", None, 3, 1))
    run.apply(Event(KEYS.replicas + "b", ReplicaValue(index=NO_REPLICA, world=3, incarnation="i").to_json(), 4, 1))
    assert run.view(Connectivity.REACHABLE).replicas == {}


def test_a_flood_of_failures_is_bounded() -> None:
    run, early = RunKeys(KEYS), dict[str, Event]()
    for number in range(1000):
        for key in (KEYS.failure(number % 7, f"m-{number}"), KEYS.hang(f"m-{number}")):
            event = Event(key, "x" * 100_000, number + 1, 1)
            run.apply(event)
            run.buffer(early, event)
    assert len(early) == 2 * MAX_VALUES
    most = MAX_VALUES * (MAX_LENGTH[FailureValue] + MAX_LENGTH[HangValue] + 2)
    assert sum(len(item.value or "") for item in early.values()) <= most
    assert run.view(Connectivity.REACHABLE).unreadable
