"""What jobs on this machine lack."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob.cluster.local import finish, not_here
from elasticjob.errors import UsageError
from elasticjob.state import job_state


def job_with(container: dict[str, Any], pod: dict[str, Any], lifecycle: dict[str, Any], **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", **container}], **pod}}
    return {"metadata": {"name": "bert"}, "spec": {"workers": {"template": template}, "lifecycle": lifecycle, **spec}}


SECRET = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}}


@pytest.mark.parametrize(
    ("container", "pod", "lifecycle", "lacks"),
    [
        ({"env": [{"name": "LR", "value": "0.1"}]}, {}, {}, []),
        ({"env": [{"name": "LR", "value": "0.1"}, SECRET]}, {}, {}, ["the variable TOKEN"]),
        ({"envFrom": [{"secretRef": {"name": "login"}}]}, {"volumes": [{"name": "data"}]}, {}, ["volumes", "envFrom"]),
        ({}, {}, {"activeDeadlineSeconds": 60}, ["activeDeadlineSeconds"]),
    ],
)
def test_what_a_job_lacks_on_this_machine_is_named(
    container: dict[str, Any], pod: dict[str, Any], lifecycle: dict[str, Any], lacks: list[str]
) -> None:
    assert not_here(job_with(container, pod, lifecycle)) == lacks


def test_a_suspended_job_is_refused_on_this_machine() -> None:
    with pytest.raises(UsageError, match="cannot be suspended"):
        not_here(job_with({}, {}, {}, suspend=True))


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_has_finished_trains_with_no_processes(code: int) -> None:
    job = {"metadata": {"name": "bert"}, "status": {"round": 1, "worldSize": 2}}
    finish(job, code, "")
    assert job_state(job).world_size == 0
