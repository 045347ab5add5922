"""Whether a Workload that exists asks for as much as the operator asked for."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_operator.queueing.bodies import pod_sets
from elasticjob_operator.queueing.requests import shortfall
from elasticjob_operator.resources.etcd import etcd_stateful_set

from tests.unit.operator.builders import make_job

Resources = dict[str, Any]


def workers(requested: Resources, count: int = 2, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "trainer", "resources": requested}]
    return {"name": "workers", "count": count, "template": {"spec": {"containers": containers, **spec}}}


def asks(**amounts: Any) -> Resources:
    return {"requests": amounts}


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        (asks(cpu="500m"), asks(cpu=0.5)),
        (asks(cpu="1"), asks(cpu="1000m")),
        (asks(memory="1Gi"), asks(memory="1024Mi")),
        (asks(cpu="1k"), asks(cpu=1000)),
        # Defaults that a webhook adds.
        (asks(cpu="1", memory="1Gi"), asks(cpu="1")),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}}),
        ({}, {}),
        ({}, None),
        # The API server has rejected it.
        ({}, asks(cpu="much")),
        ({}, asks(cpu=None)),
    ],
)
def test_what_the_api_server_writes_in_another_way_is_no_less(known: Resources, wanted: Resources) -> None:
    assert shortfall([workers(known)], [workers(wanted)]) == ""


@pytest.mark.parametrize(
    ("known", "wanted", "says"),
    [
        (asks(cpu="1m"), asks(cpu="100m"), "container trainer of podSet workers asks for 1m cpu instead of 100m"),
        (asks(memory="1Mi"), asks(memory="1Gi"), "asks for 1Mi memory instead of 1Gi"),
        (None, asks(cpu="1"), "asks for no cpu instead of 1"),
        # Without a request, the limit is one.
        ({"limits": {"cpu": "4"}, "requests": {"cpu": "1m"}}, {"limits": {"cpu": "4"}}, "asks for 1m cpu instead of 4"),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "4"}}, "asks for 1 cpu instead of 4"),
        (asks(), asks(**{"nvidia.com/gpu": 1}), "asks for no nvidia.com/gpu instead of 1"),
        (asks(cpu="much"), asks(cpu="1"), "asks for no cpu instead of 1"),
    ],
)
def test_what_is_smaller_or_missing_is_less(known: Resources, wanted: Resources, says: str) -> None:
    assert says in shortfall([workers(known)], [workers(wanted)])


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ([], "podSet workers is missing"),
        ([workers(asks(cpu="1"))], "container load of podSet workers asks for no cpu instead of 2"),
        ([{"name": "workers", "count": 2}], "asks for no"),
    ],
)
def test_init_containers_and_pod_sets_count(known: list[dict[str, Any]], says: str) -> None:
    init = [{"name": "load", "resources": asks(cpu="2")}]
    assert says in shortfall(known, [workers(asks(cpu="1"), initContainers=init)])


def test_resources_of_the_pod_count_and_the_number_of_worker_pods_does_not() -> None:
    wanted = [workers({}, resources=asks(cpu="2"))]
    assert "the pod of podSet workers asks for 1 cpu instead of 2" in shortfall(
        [workers({}, resources=asks(cpu="1"))], wanted
    )
    assert shortfall([workers({}, count=1, resources=asks(cpu="2"))], wanted) == ""


def test_what_the_operator_writes_is_never_less_than_itself() -> None:
    job = make_job()
    wanted = pod_sets(job, 2, etcd_stateful_set(job, "etcd"))
    assert shortfall(wanted, wanted) == ""
    fewer = [wanted[0], {**wanted[1], "count": 0}]
    assert shortfall(fewer, wanted) == "podSet etcd has 0 pods instead of 1"
