"""A job's own etcd with three members, on a real API server: its objects are accepted, and left alone afterwards."""

from __future__ import annotations

from collections.abc import Callable

from hack.support import eventually
from tests.integration.operator.kube import Namespace
from tests.integration.operator.process import Operator

ETCD = {"members": 3, "storage": {"size": "100Mi"}}
KINDS = ("statefulsets", "services", "poddisruptionbudgets")


def versions(ns: Namespace) -> dict[tuple[str, str], str]:
    return {(kind, name): item["metadata"]["resourceVersion"] for kind in KINDS for name, item in ns.all(kind).items()}


def test_three_members_are_created_once_and_removed_with_a_suspended_job(
    ns: Namespace, operator: Operator, submit: Callable[..., str]
) -> None:
    submit(endpoint="", replicas=2, spec={"rendezvous": {"type": "Dedicated", "etcd": ETCD}})
    eventually(lambda: len(ns.workers()) == 2, what="worker pods")
    wanted = {
        ("statefulsets", "digits-etcd"),
        ("services", "digits"),
        ("services", "digits-etcd"),
        ("services", "digits-etcd-peers"),
        ("poddisruptionbudgets", "digits-etcd"),
    }
    before = eventually(lambda: found if (found := versions(ns)).keys() == wanted else None, what="all objects")
    stateful_set = ns.all("statefulsets")["digits-etcd"]["spec"]
    assert stateful_set["replicas"] == 3
    assert stateful_set["volumeClaimTemplates"][0]["spec"]["resources"]["requests"] == {"storage": "100Mi"}
    assert "peer-server.key" in next(
        item["data"] for name, item in ns.all("secrets").items() if name != "elasticjob-ca"
    )
    operator.kill()
    operator.restart()
    ns.scale("digits", 3)
    eventually(lambda: len(ns.workers()) == 3, what="another worker pod")
    assert versions(ns) == before, "nothing looks changed once the API server has filled in its defaults"
    ns.patch("elasticjobs", "digits", {"spec": {"suspend": True}})
    eventually(lambda: not versions(ns), what="everything is deleted")
