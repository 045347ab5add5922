"""The API server accepts what `elasticjob convert` writes, as `kubectl apply --dry-run=server` does."""

from __future__ import annotations

import pytest
from elasticjob.convert import dump

from tests.integration.manifests import Cluster, api, empty
from tests.unit.client.convert.goldens import CASES, converted

__all__ = ["api", "empty"]


@pytest.mark.parametrize("case", CASES)
def test_a_converted_job_and_its_pods_are_accepted(empty: Cluster, case: str) -> None:
    for each in converted(case):
        if each.manifest["kind"] != "ElasticJob":
            continue
        each.manifest["metadata"].pop("namespace", None)
        empty.kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=dump(each.manifest))
        template = each.manifest["spec"]["workers"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template.get("metadata", {}), "name": "p"}}
        spec = {**template["spec"], "restartPolicy": "Never"}
        spec.pop("serviceAccountName", None), spec.pop("priorityClassName", None)
        assert empty.try_to_create_pod({**pod, "spec": spec}) == ""
