"""The API server accepts what `elasticjob convert` writes, and the pods that the operator makes of it."""

from __future__ import annotations

import pytest
from elasticjob.convert import dump
from elasticjob.decisions.documents import Document
from elasticjob_operator.resources.injection import InjectionWay, check_injectable, inject
from elasticjob_operator.resources.pods import worker_pod

from tests.integration.manifests import Cluster, api, empty
from tests.unit.client.convert.goldens import CASES, converted

__all__ = ["api", "empty"]

FROM_ELSEWHERE = ("serviceAccountName", "priorityClassName")
"""Fields of a pod that name objects which the test's namespace does not have."""


def job_of(case: str) -> Document:
    """The case's ElasticJob, for the test's own namespace."""
    (manifest,) = (item.manifest for item in converted(case) if item.manifest["kind"] == "ElasticJob")
    manifest["metadata"].pop("namespace", None)
    return manifest


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", InjectionWay)
def test_a_converted_job_and_its_worker_pods_are_accepted(empty: Cluster, case: str, way: InjectionWay) -> None:
    job = empty.try_to_create(job_of(case))
    check_injectable(job)
    pod = inject(worker_pod(job, index=0, run=1, endpoint="etcd:2379"), way, "elasticjob-runtime:1", "IfNotPresent")
    pod["spec"] = {key: value for key, value in pod["spec"].items() if key not in FROM_ELSEWHERE}
    assert empty.try_to_create_pod(pod) == ""


def test_kubectl_creates_converted_jobs(empty: Cluster) -> None:
    manifests = "---\n".join(dump(job_of(case)) for case in CASES)
    created = empty.kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=manifests)
    assert len(created.splitlines()) == len(CASES)
