"""Whatever a user writes into a job, its reader says what is wrong with it, and nothing else happens."""

from __future__ import annotations

import contextlib
import copy
import re
from typing import Any

import pytest
from elasticjob_api import ElasticJob, InvalidJobError
from elasticjob_operator.controller.job_cache import JobCache
from elasticjob_operator.planning import plan
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Admission, JobState
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
POD = [
    *("containers", "initContainers", "volumes", "hostNetwork", "terminationGracePeriodSeconds", "tolerations", "zz"),
    *("affinity", "imagePullSecrets", "securityContext", "serviceAccountName", "topologySpreadConstraints"),
]
CONTAINER = ["name", "image", "command", "args", "env", "ports", "volumeMounts", "resources", "securityContext"]


METADATA = ["labels", "annotations", "name", "finalizers"]


def some(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), ANY, max_size=3)


def read(spec: dict[str, Any]) -> ElasticJob:
    """As the operator reads a job with that spec. Raises InvalidJobError."""
    jobs = JobCache()
    metadata = {"namespace": "ml", "name": "digits", "uid": "u" * 8, "resourceVersion": "1", "generation": 1}
    jobs.put({"metadata": metadata, "spec": spec})
    job = jobs.get(("ml", "digits"))
    assert job is not None
    return job


@settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(some(FIELDS), some(WORKERS), some(POD), some(CONTAINER), some(METADATA) | ANY)
def test_any_spec_is_planned_or_invalid(
    spec: dict[str, Any],
    workers: dict[str, Any],
    pod: dict[str, Any],
    container: dict[str, Any],
    metadata: Any,
) -> None:
    template = {
        "metadata": metadata,
        "spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], **container}], **pod},
    }
    with contextlib.suppress(InvalidJobError):
        job = read({"workers": {"replicas": 1, "template": template, **workers}, **spec})
        for admission in (None, Admission(template_hash=hash_of(job), at=NOW)):
            assert plan(job, JobState(nodes=None, admission=admission), Settings(runtime_image="runtime"), NOW).status


WRONG_TYPES: dict[str, list[Any]] = {
    "metadata": [1, []],
    "metadata.labels": [1, ["a"]],
    "metadata.annotations": ["a", [{}]],
    "spec": [1, []],
    "spec.affinity": [1, []],
    "spec.affinity.nodeAffinity": [[]],
    "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": [1, {"weight": 1}],
    "spec.securityContext": [1, []],
    "spec.containers": [1, {"name": "trainer"}],
    "spec.initContainers": [1, True, ["copy"], [None]],
    "spec.volumes": [1, "data", {"name": "data"}, ["data"], [None]],
    "spec.tolerations": [1, ["all"]],
    "spec.imagePullSecrets": ["registry", ["registry"]],
    "spec.topologySpreadConstraints": [1, {}],
    "spec.containers.0.env": [True, "0", ["LR=0.1"], {"LR": "0.1"}],
    "spec.containers.0.env.0.name": [1, {}, []],
    "spec.containers.0.name": [1, {}],
    "spec.containers.0.volumeMounts": [1, ["/data"]],
    "spec.containers.0.ports": [9100, [9100]],
    "spec.containers.0.securityContext": [1, []],
    "spec.initContainers.0.env": [1],
}


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in WRONG_TYPES.items() for value in values])
def test_a_template_with_a_value_of_the_wrong_type_is_invalid(path: str, value: Any) -> None:
    template: Any = copy.deepcopy(TEMPLATE)
    template["metadata"] = {}
    template["spec"] |= {"initContainers": [{"name": "copy"}], "affinity": {"nodeAffinity": {}}}
    template["spec"]["containers"][0]["env"] = [{"name": "LR"}]
    where = template
    *above, field = (int(word) if word.isdigit() else word for word in path.split("."))
    for word in above:
        where = where[word]
    where[field] = value
    said = re.sub(r"\.(\d+)", r"[\1]", path)
    with pytest.raises(InvalidJobError, match=re.escape(f"spec.workers.template.{said}") + ".* is .*: write an? "):
        read({"workers": {"template": template}})
