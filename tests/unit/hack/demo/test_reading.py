"""What kubectl prints is read to the last object and line, cut off or not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

import pytest
import yaml

from hack.demo.follow import parse_stamp, split_objects
from hack.demo.run import EXAMPLE, manifests
from hack.drivers import ClusterDriver


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


CLAIM = {"persistentVolumeClaim": {"claimName": "mine"}}
SHARED = {"hostPath": {"path": "/shared", "type": "Directory"}}


@dataclasses.dataclass
class Cluster:
    checkpoint_volume: dict[str, Any] | None
    shared_directory: str | None
    pull_policy: str = "IfNotPresent"

    def image(self, name: str) -> str:
        return f"registry.example/{name}"


@pytest.mark.parametrize(
    ("cluster", "volume"), [(Cluster(None, "/shared"), SHARED), (Cluster(CLAIM, None), CLAIM)], ids=["ours", "yours"]
)
def test_the_example_is_run_as_it_is_except_for_what_the_cluster_has(cluster: Cluster, volume: dict[str, Any]) -> None:
    job = yaml.safe_load((EXAMPLE / "elasticjob.yaml").read_text())
    script = {"kind": "ConfigMap", "data": {"train.py": "print()"}}
    built = yaml.safe_dump_all([script, job])
    one, other = manifests(built, cast(ClusterDriver, cluster))
    assert one == script
    container = other["spec"]["workers"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example/trainer", "IfNotPresent")
    assert other["spec"]["checkpoint"]["volume"] == volume
    before = job["spec"]["workers"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python3", *before["command"][1:]]
    assert container["args"] == before["args"]
