"""Whatever a user writes into a job, its reader says what is wrong with it, and nothing else happens."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from elasticjob_api import ElasticJob, InvalidJobError
from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.planning import plan
from elasticjob_operator.resources.template import InvalidTemplateError, check_container
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import JobState
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.operator.builders import NOW, TEMPLATE

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)
FIELDS = [*ElasticJob.model_fields["spec"].annotation.model_fields]  # type: ignore[union-attr]
WORKERS = ["replicas", "minReplicas", "maxReplicas", "template", "runtime", "procsPerWorker", "allowedReplicas"]
POD = ["containers", "initContainers", "volumes", "hostNetwork", "terminationGracePeriodSeconds", "tolerations", "zz"]
CONTAINER = ["name", "image", "command", "args", "env", "ports", "volumeMounts", "resources", "securityContext"]


def some(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), ANY, max_size=3)


@settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(some(FIELDS), some(WORKERS), some(POD), some(CONTAINER), st.dictionaries(st.text(max_size=12), ANY, max_size=2))
def test_any_spec_is_planned_or_invalid(
    spec: dict[str, Any],
    workers: dict[str, Any],
    pod: dict[str, Any],
    container: dict[str, Any],
    metadata: dict[str, Any],
) -> None:
    template = {
        "metadata": metadata,
        "spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], **container}], **pod},
    }
    body = {
        "metadata": {"namespace": "ml", "name": "digits", "uid": "u" * 8, "resourceVersion": "1", "generation": 1},
        "spec": {"workers": {"replicas": 1, "template": template, **workers}, **spec},
    }
    jobs = JobCache()
    jobs.put(body)
    with contextlib.suppress(InvalidJobError):
        job = jobs.get(("ml", "digits"))
        assert job is not None
        assert plan(job, JobState(nodes=None), Settings(), NOW).status


@pytest.mark.parametrize("env", [True, "0", ["LR=0.1"], {"LR": "0.1"}])
def test_variables_that_are_no_list_of_objects_are_named(env: Any) -> None:
    with pytest.raises(InvalidTemplateError, match=r"env of container trainer is .*: write a list"):
        check_container({"name": "trainer", "env": env})
