"""What kubectl prints is read to the last object and line, cut off or not."""

from __future__ import annotations

import json

import pytest

from hack.demo.follow import parse_stamp, split_objects
from hack.demo.run import steps_of


def test_objects_printed_one_after_the_other_are_separated() -> None:
    objects = [
        {"kind": "ElasticJob", "status": {"conditions": [{"type": "Running"}]}},
        {"kind": "ElasticJob", "status": {}},
    ]
    text = "".join(json.dumps(each, indent=4) + "\n" for each in objects)
    assert list(split_objects(text.splitlines(keepends=True))) == objects


def test_an_object_that_was_cut_off_is_left_out() -> None:
    assert list(split_objects(["{\n", '  "a":\n', "}\n", "{\n", '  "b": 1\n', "}\n", "{\n"])) == [{"b": 1}]


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T00:00:00.5Z", 1767225600.5),
        ("2026-01-01T00:00:01.123456789Z", 1767225601.123456789),
        ("failed", None),
        ("", None),
    ],
)
def test_times_of_log_lines_are_read(stamp: str, expected: float | None) -> None:
    assert parse_stamp(stamp) == expected


@pytest.mark.parametrize(
    ("args", "expected"), [(["--steps=90"], 90), (["--steps", "80", "x"], 80), (["--step-seconds=1"], 600)]
)
def test_halfway_is_half_of_the_steps_in_the_manifest(args: list[str], expected: int) -> None:
    container = {"command": ["elasticrun", "train.py"], "args": args}
    assert steps_of({"spec": {"workers": {"template": {"spec": {"containers": [container]}}}}}) == expected
