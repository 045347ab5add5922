"""Jobs that an earlier CRD has accepted, under this one: on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from elasticjob_api import ElasticJob, InvalidJobError
from elasticjob_api.refused import REFUSED, Refused

from hack.cluster import ControlPlane
from hack.support import eventually
from tests.integration.manifests import TRAINER, Cluster, Manifest, api, changed, namespace
from tests.integration.operator.kube import ApiStatusError, Kube

__all__ = ["api"]

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.elasticjob.dev"
RESERVED = "ELASTICJOB_ROUND"
WITH_RESERVED = {f"{TRAINER}.env.1": {"name": RESERVED, "value": "1"}}
VALUES: dict[str, Any] = {"boolean": True, "string": "a.b/c", "object": {"maxRestarts": 3}, "integer": 2}


def _named(name: str, changes: dict[str, Any]) -> Manifest:
    return changed({"metadata.name": name, **changes})


def _name_of(refused: Refused) -> str:
    return refused.path.rpartition(".")[2].lower()


STORED = [
    _named("reserved", WITH_RESERVED),
    _named("endpoint", {"spec.rendezvous.endpoint": "etcd:2379"}),
    *(_named(_name_of(item), {item.path: VALUES[item.schema["type"]]}) for item in REFUSED),
]
"""What an earlier release accepted."""


def _earlier(crd: Manifest) -> Manifest:
    """A CRD from before a variable was reserved, fields were refused, and the rendezvous had a type."""
    result: Manifest = json.loads(json.dumps(crd).replace(f"'{RESERVED}', ", ""))
    for item in REFUSED:
        schema = result["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for name in item.path.split("."):
            schema = schema["properties"][name]
        del schema["x-kubernetes-validations"]
    spec = result["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["rendezvous"]["x-kubernetes-validations"]
    return result


def _replace(kube: Kube, crd: Manifest) -> None:
    newest = kube.call("GET", CRD)["metadata"]["resourceVersion"]
    kube.call("PUT", CRD, {**crd, "metadata": {**crd["metadata"], "resourceVersion": newest}})


def _accepts(cluster: Cluster, changes: dict[str, Any]) -> bool:
    try:
        cluster.try_to_create(_named("asks", changes))
    except ApiStatusError:
        return False
    return True


@pytest.fixture(scope="module")
def stored(api: ControlPlane) -> Iterator[Cluster]:
    """A namespace with jobs of an earlier release, after the upgrade."""
    kube = Kube(api.kubeconfig)
    crd = kube.call("GET", CRD)
    with namespace(api) as cluster:
        try:
            _replace(kube, _earlier(crd))
            eventually(lambda: _accepts(cluster, WITH_RESERVED), what="the API server uses the earlier CRD")
            for manifest in STORED:
                cluster.create(manifest)
        finally:
            _replace(kube, crd)
        eventually(lambda: not _accepts(cluster, WITH_RESERVED), what="the API server uses this CRD")
        yield cluster


def test_a_job_stays_scalable_when_a_variable_is_reserved_that_it_sets(stored: Cluster) -> None:
    stored.kubectl("scale", "elasticjob/reserved", "--replicas=6")
    assert ElasticJob.parse(stored.get("reserved")).replicas == 6


def test_a_template_that_changes_is_judged_by_the_names_that_are_reserved_now(stored: Cluster) -> None:
    """Its node selector may change all the same, as queues change it."""
    job = stored.get("reserved")
    moved = changed({"spec.workers.template.spec.nodeSelector": {"pool": "a"}}, job)
    stored.kubectl("apply", "--filename=-", stdin=json.dumps(moved))
    edited = changed({f"{TRAINER}.image": "train:2"}, stored.get("reserved"))
    with pytest.raises(ApiStatusError, match=f'sets \\["{RESERVED}"\\], which ElasticJob sets itself'):
        stored.try_to_change(edited)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda item: item.path)
def test_a_job_with_an_older_field_keeps_it_and_is_not_read_without_it(stored: Cluster, refused: Refused) -> None:
    """The operator can say so in its status."""
    name = _name_of(refused)
    with pytest.raises(InvalidJobError, match=refused.path):
        ElasticJob.parse(stored.get(name))
    stored.set_status({"summary": "InvalidSpec"}, name)
    assert stored.get(name)["status"]["summary"] == "InvalidSpec"


def test_a_job_from_before_there_were_types_of_rendezvous_is_not_moved_to_another_etcd(stored: Cluster) -> None:
    with pytest.raises(InvalidJobError, match=r"spec\.rendezvous\.endpoint is for type External"):
        ElasticJob.parse(stored.get("endpoint"))
    stored.set_status({"summary": "InvalidSpec"}, "endpoint")
