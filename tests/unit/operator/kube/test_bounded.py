"""What any user may have put into an object costs no more than a bounded part of it."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest
from elasticjob_operator.kube import bounded
from elasticjob_operator.kube.bounded import FAULT, MOST_BYTES, MOST_LEVELS, bounded_job, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=40,
)


def nested(levels: int, leaf: str = "1") -> bytes:
    return b'{"a":' * levels + leaf.encode() + b"}" * levels


def job(**spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": "digits", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}
    return {"apiVersion": "elasticjob.dev/v1alpha1", "kind": "ElasticJob", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("levels", [1, 254, 255, 1024, 1025, 10_000])
def test_json_of_any_depth_is_parsed(levels: int) -> None:
    found = parse(b'{"deep":' + nested(levels) + b',"after":"x"}')
    assert found["after"] == "x"


def test_what_is_too_deep_is_cut_off_and_its_neighbours_are_kept() -> None:
    items = b'{"items":[{"spec":' + nested(5000, '"]}"') + b'},{"spec":{"b":"[{\\"[{"}},{"spec":[' + nested(3) + b"]}]}"
    found = parse(items)["items"]
    assert found[1:] == [{"spec": {"b": '[{"[{'}}, {"spec": [{"a": {"a": {"a": 1}}}]}]
    assert parse(nested(5000))
    levels, value = 0, found[0]["spec"]
    while value is not None:
        levels, value = levels + 1, value["a"]
    assert MOST_LEVELS < levels < 254


@pytest.mark.parametrize("text", [b"", b"<html>", b"[" * 5000, b"]" * 5000, b'"' + b"[" * 5000, b'{"a":' * 2000])
def test_what_is_no_json_is_an_error(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse(text)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON, st.integers(0, 3))
def test_cutting_changes_nothing_that_is_flat(value: Any, spaces: int) -> None:
    text = json.dumps(value, indent=spaces or None).encode()
    assert bounded._without_depths(text) == text


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"zz": json.loads(nested(MOST_LEVELS))}, r"spec\.zz\.a\.a.*nested more than 64 levels deep"),
        ({"zz": json.loads(nested(300))}, r"spec\.zz\.a\.a.*nested more than 64 levels deep"),
        ({"zz": [{}] * 340_000}, r"spec: 1,020,.* bytes and about 680,.* values are too many"),
        ({"zz": "x" * MOST_BYTES}, r"spec: 262,.* bytes .* are too many"),
    ],
)
def test_a_spec_that_is_too_deep_or_too_large_is_not_kept(spec: dict[str, Any], fault: str) -> None:
    kept = bounded_job({**job(**spec), "status": {"restarts": {"total": 2}}})
    assert "spec" not in kept
    assert kept["status"] == {"restarts": {"total": 2}}, "it is written again"
    assert kept["metadata"] == {"namespace": "ml", "name": "digits", "uid": "u", "resourceVersion": "7"}
    assert re.match(fault, kept[FAULT])
    assert bounded_job(kept) == kept


def test_an_ordinary_job_is_kept_without_what_is_never_read() -> None:
    body = job(workers={"replicas": 2})
    body["metadata"] |= {"managedFields": json.loads(nested(900)), "finalizers": ["x"]}
    assert bounded_job(body) == job(workers={"replicas": 2})


def test_labels_are_bounded_too() -> None:
    body = job(workers={"replicas": 2})
    body["metadata"]["labels"] = {f"label-{number}": "x" for number in range(60_000)}
    kept = bounded_job(body)
    assert "labels" not in kept["metadata"]
    assert kept[FAULT].startswith("metadata: ")
