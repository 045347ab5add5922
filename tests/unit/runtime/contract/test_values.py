"""Whatever etcd contains, reading it gives the right types or a ValueError that names the field."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from elasticjob_runtime import contract
from elasticjob_runtime.contract import (
    CONSISTENT,
    MemberState,
    MemberValue,
    Neighbour,
    PlanReason,
    PlanValue,
    RankValue,
    SpecValue,
    Value,
)
from hypothesis import given
from hypothesis import strategies as st

VALUES = sorted(
    (one for one in vars(contract).values() if isinstance(one, type) and issubclass(one, Value) and one is not Value),
    key=lambda one: one.__name__,
)
PLAN: dict[str, Any] = {
    "round": 2,
    "attempt": "00000002.a.1",
    "size": 2,
    "world_size": 4,
    "master_addr": "10.0.0.1",
    "master_port": 1234,
    "leader": "a",
    "nproc": 2,
    "restart_count": 1,
    "reason": "Start",
    "gone": [1],
    "store_generation": 3,
}
MEMBER: dict[str, Any] = {"address": "10.0.0.1", "ports": [1, 2], "nproc": 1, "incarnation": "ia"}
SPEC: dict[str, Any] = {"min": 1, "max": 3}
RANK: dict[str, Any] = {"group_rank": 1, "incarnation": "ia"}
NEIGHBOUR: dict[str, Any] = {"name": "b", "incarnation": "ib", "address": "10.0.0.2", "peer_port": 7}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def read(kind: type[Value], data: Any) -> Value:
    return kind.from_json(json.dumps(data))


def test_members_and_plans_of_torchrun_have_no_worker_count() -> None:
    assert MemberValue.from_json(json.dumps(MEMBER | {"nproc": 0})).nproc == 0
    assert PlanValue.from_json(json.dumps(PLAN | {"nproc": 0, "world_size": 0})).world_size == 0


def test_values_survive_a_round_trip() -> None:
    plan = PlanValue.from_json(json.dumps(PLAN))
    assert (plan.round, plan.reason, plan.gone, plan.store_generation) == (2, PlanReason.START, (1,), 3)
    assert PlanValue.from_json(plan.to_json()) == plan
    rank = RankValue.from_json(json.dumps(RANK | {"neighbours": [NEIGHBOUR]}))
    assert rank.neighbours == (Neighbour(**NEIGHBOUR),)
    assert RankValue.from_json(rank.to_json()) == rank
    member = MemberValue.from_json(json.dumps(MEMBER | {"state": "ready"}))
    assert member.state is MemberState.READY
    assert MemberValue.from_json(member.to_json()) == member


def test_missing_fields_of_an_older_operators_spec_have_defaults() -> None:
    spec = SpecValue.from_json(json.dumps(SPEC))
    assert (spec.on_partition, spec.store_generation, spec.max_restarts) == ("Available", 0, None)
    assert (
        SpecValue.from_json(json.dumps(SPEC | {"on_partition": CONSISTENT, "store_generation": 2})).store_generation
        == 2
    )


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert read(SpecValue, SPEC | {"future_field": {"a": 1}}) == SpecValue(min=1, max=3)


@pytest.mark.parametrize(
    ("kind", "data", "field"),
    [
        pytest.param(PlanValue, PLAN | {"round": "2"}, "round", id="a number as a string"),
        pytest.param(PlanValue, PLAN | {"round": True}, "round", id="a boolean as a number"),
        pytest.param(PlanValue, PLAN | {"round": 2.5}, "round", id="a fraction"),
        pytest.param(PlanValue, PLAN | {"round": 0}, "round", id="round 0"),
        pytest.param(PlanValue, PLAN | {"round": 10**40}, "round", id="a huge number"),
        pytest.param(PlanValue, PLAN | {"reason": "Because"}, "reason", id="an unknown word"),
        pytest.param(PlanValue, PLAN | {"reason": []}, "reason", id="a list instead of a word"),
        pytest.param(PlanValue, PLAN | {"gone": [1, "2"]}, "gone", id="a string among numbers"),
        pytest.param(PlanValue, PLAN | {"master_port": 70000}, "master_port", id="no TCP port"),
        pytest.param(PlanValue, PLAN | {"created_at": float("nan")}, "created_at", id="not a number"),
        pytest.param(PlanValue, PLAN | {"leader": "a\0b"}, "leader", id="a NUL"),
        pytest.param(PlanValue, PLAN | {"leader": "\ud800"}, "leader", id="half a character"),
        pytest.param(PlanValue, {key: PLAN[key] for key in PLAN if key != "size"}, "size", id="missing"),
        pytest.param(MemberValue, MEMBER | {"ports": []}, "ports", id="no ports"),
        pytest.param(MemberValue, MEMBER | {"ports": "12"}, "ports", id="a string instead of a list"),
        pytest.param(SpecValue, SPEC | {"max_restarts": "3"}, "max_restarts", id="an optional number as a string"),
        pytest.param(SpecValue, SPEC | {"draining": "ab"}, "draining", id="a string instead of a list of names"),
        pytest.param(SpecValue, SPEC | {"on_partition": "Maybe"}, "on_partition", id="an unknown policy"),
        pytest.param(SpecValue, {"min": 3, "max": 2}, "max", id="max below min"),
        pytest.param(
            RankValue, RANK | {"neighbours": [{"name": "b"}]}, "neighbours", id="a neighbour without an address"
        ),
        pytest.param(RankValue, RANK | {"neighbours": [1]}, "neighbours", id="a number instead of a neighbour"),
        pytest.param(
            RankValue, RANK | {"neighbours": [NEIGHBOUR | {"peer_port": "7"}]}, "neighbours", id="inside a neighbour"
        ),
    ],
)
def test_an_invalid_value_is_rejected_with_the_fields_name(kind: type[Value], data: Any, field: str) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}.*{field}"):
        read(kind, data)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", '"a"', "[" * 100_000, b"\xff\xfe", '{"a":1' * 50_000])
@pytest.mark.parametrize("kind", VALUES)
def test_text_that_is_not_a_json_object_is_a_value_error(kind: type[Value], text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        kind.from_json(text)


@given(data=st.data())
def test_any_value_is_parsed_or_a_value_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(VALUES))
    names = [field.name for field in dataclasses.fields(kind)]
    base = {PlanValue: PLAN, MemberValue: MEMBER, SpecValue: SPEC, RankValue: RANK}.get(kind, {})
    document = base | data.draw(st.dictionaries(st.sampled_from(names), anything, max_size=len(names)))
    try:
        value = kind.from_json(json.dumps(document))
    except ValueError:
        return
    assert kind.from_json(value.to_json()) == value


@given(st.binary(max_size=64))
def test_any_text_is_parsed_or_a_value_error(text: bytes) -> None:
    for kind in VALUES:
        with pytest.raises(ValueError, match=r".+"):
            kind.from_json(text)
