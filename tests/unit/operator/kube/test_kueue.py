"""Which names for surplus of a job are taken."""

from __future__ import annotations

from elasticjob_operator import names
from elasticjob_operator.kube.cache import Json, ObjectCache
from elasticjob_operator.kube.convert import job_of
from elasticjob_operator.kube.kueue import _taken
from elasticjob_operator.kube.queue_convert import workload_of


def body(name: str, job: str, part: str, namespace: str = "ml") -> Json:
    labels = {names.LABEL_JOB: job, names.LABEL_WORKLOAD_PART: part}
    return {"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "labels": labels}}


def test_base_of_a_job_whose_name_a_surplus_of_another_one_could_have_is_known() -> None:
    found = ObjectCache(workload_of, job_of, lambda _: None)
    for item in (
        body("z", "z", "base"),
        body("z-surplus-1", "z", "surplus"),
        body("z-surplus-0", "z-surplus-0", "base"),
        body("z-surplus-2", "z-surplus-2", "base", namespace="other"),
    ):
        found.put(item)
    assert _taken(found, ("ml", "z")) == {"z-surplus-0", "z-surplus-1"}
    assert _taken(found, ("ml", "z-surplus-0")) == frozenset()
