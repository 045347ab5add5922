from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from elasticjob_operator.resources.pods import hash_of, worker_pod
from elasticjob_operator.resources.template import InvalidTemplateError

from tests.unit.operator.builders import TEMPLATE, UID, make_job

TWO: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "kept"}, "name": "not-ours"},
    "spec": {
        "containers": [
            {"name": "logger", "image": "log:1"},
            {"name": "trainer", "image": "t:1", "env": [{"name": "LR", "value": "$(PET_NNODES)"}]},
        ],
        "nodeSelector": {"gpu": "a100"},
        "futureField": {"kept": True},
        "restartPolicy": "Always",
    },
}


def build(job: Any = None, index: int = 2, **workers: Any) -> dict[str, Any]:
    return worker_pod(job or make_job(**workers), index=index, run=1, endpoint="etcd:2379")


def environment(pod: dict[str, Any], container: int = 0) -> dict[str, Any]:
    found = pod["spec"]["containers"][container].get("env", [])
    return {item["name"]: item.get("value") or item["valueFrom"]["fieldRef"]["fieldPath"] for item in found}


def test_the_environment_replaces_all_rendezvous_flags() -> None:
    assert environment(build()) == {
        "PET_NNODES": "2:8",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ID": f"{UID}-1",
        "PET_RDZV_BACKEND": "etcd-v3",
        "PET_RDZV_ENDPOINT": "etcd:2379",
        "PET_MAX_RESTARTS": "3",
        "ELASTICJOB_NAME": "digits",
        "ELASTICJOB_NAMESPACE": "ml",
        "ELASTICJOB_RUN": "1",
        "ELASTICJOB_UID": UID,
        "PET_SHUTDOWN_TIMEOUT": "25",
        "ELASTICJOB_MEMBER_ID": "metadata.name",
        "ELASTICJOB_ADDRESS": "status.podIP",
    }


def test_agents_get_the_size_of_replicas() -> None:
    assert environment(build(workers={"replicaSize": 2}))["PET_REPLICA_SIZE"] == "2"


def test_only_the_training_container_gets_the_environment() -> None:
    pod = build(template=TWO, workers={"container": "trainer"})
    assert "env" not in pod["spec"]["containers"][0]
    names = list(environment(pod, 1))
    assert names.index("PET_NNODES") < names.index("LR"), "the user's variables can refer to ours"
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "trainer"


def test_the_first_container_trains_by_default() -> None:
    pod = build(template=TWO)
    assert "PET_NNODES" in environment(pod, 0)
    assert "PET_NNODES" not in environment(pod, 1)


def test_the_users_template_is_kept_completely() -> None:
    pod = build(template=TWO)
    assert pod["spec"]["nodeSelector"] == {"gpu": "a100"}
    assert pod["spec"]["futureField"] == {"kept": True}
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["metadata"]["annotations"]["note"] == "kept"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"automountServiceAccountToken": True}, True),
        ({"serviceAccountName": "trainer"}, None),
        ({"serviceAccountName": "trainer", "automountServiceAccountToken": False}, False),
    ],
)
def test_the_default_accounts_token_is_not_mounted(given: dict[str, Any], expected: bool | None) -> None:
    job = make_job(template={"spec": {**TEMPLATE["spec"], **given}})
    spec = worker_pod(job, index=0, run=1, endpoint="etcd:2379")["spec"]
    assert spec.get("automountServiceAccountToken") is expected


def test_building_a_pod_does_not_change_the_template() -> None:
    template = copy.deepcopy(TWO)
    build(template=template)
    assert template == TWO


def test_a_worker_pod_has_a_stable_host_name_and_belongs_to_its_job() -> None:
    pod = build()
    metadata = pod["metadata"]
    assert re.fullmatch("digits-worker-2-[bcdfghjklmnpqrstvwxz2456789]{5}", metadata["name"])
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("digits-worker-2", "digits")
    assert pod["spec"]["restartPolicy"] == "Never"
    assert [(owner["uid"], owner["controller"]) for owner in metadata["ownerReferences"]] == [(UID, True)]
    labels = metadata["labels"]
    assert (labels["elasticjob.dev/job-name"], labels["elasticjob.dev/worker-index"], labels["elasticjob.dev/run"]) == (
        "digits",
        "2",
        "1",
    )


def test_the_template_hash_covers_only_the_users_template() -> None:
    label = "elasticjob.dev/template-hash"
    first = build()["metadata"]["labels"][label]
    assert first == build(index=5)["metadata"]["labels"][label] == hash_of(make_job())
    assert first == build(replicas=6, max=9)["metadata"]["labels"][label], "running agents learn sizes from etcd"
    assert first != build(template=TWO)["metadata"]["labels"][label]


@pytest.mark.parametrize(
    "source",
    [
        {"persistentVolumeClaim": {"claimName": "ckpt"}},
        {"nfs": {"server": "nfs", "path": "/", "readOnly": False}},
        {"aSourceOfTheFuture": {"deep": [1, None]}},
    ],
)
def test_the_checkpoint_volume_is_mounted_in_the_training_container(source: dict[str, Any]) -> None:
    pod = build(spec={"checkpoint": {"directory": "/ckpt", "volume": source}})
    assert pod["spec"]["volumes"] == [{"name": "elasticjob-checkpoint", **source}]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [{"name": "elasticjob-checkpoint", "mountPath": "/ckpt"}]
    assert environment(pod)["ELASTICJOB_CHECKPOINT_DIRECTORY"] == "/ckpt"


def test_a_checkpoint_directory_without_a_volume_is_only_exported() -> None:
    pod = build(spec={"checkpoint": {"directory": "/mine"}})
    assert "volumes" not in pod["spec"]
    assert environment(pod)["ELASTICJOB_CHECKPOINT_DIRECTORY"] == "/mine"


@pytest.mark.parametrize(
    ("template", "workers", "words"),
    [
        pytest.param({"metadata": {}}, {}, "template.spec is missing", id="no spec"),
        pytest.param({"spec": {"containers": []}}, {}, "at least one container", id="no containers"),
        pytest.param({"spec": {"containers": [{"image": "x"}]}}, {}, "name is missing", id="container without a name"),
        pytest.param(TEMPLATE, {"container": "other"}, "has only: trainer", id="no such container"),
    ],
)
def test_an_invalid_template_is_rejected_with_a_reason(
    template: dict[str, Any], workers: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidTemplateError, match=words):
        build(template=template, workers=workers)


def test_a_second_volume_at_the_checkpoint_directory_is_rejected() -> None:
    mounted = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"name": "mine", "mountPath": "/ckpt"}]}]}}
    checkpoint = {"checkpoint": {"directory": "/ckpt", "volume": {"emptyDir": {}}}}
    with pytest.raises(InvalidTemplateError, match="already mounts volume 'mine'"):
        build(template=mounted, spec=checkpoint)


@pytest.mark.parametrize(
    ("of_pod", "wanted", "pod_gets", "workers_get"),
    [
        pytest.param(None, None, None, "25", id="neither: Kubernetes' 30 s, less what the agent needs"),
        pytest.param(10, None, 10, "5", id="the template's"),
        pytest.param(3, None, 3, "0", id="too short for the agent: none for the worker processes"),
        pytest.param(None, 120, 125, "120", id="the pod gets more than its worker processes"),
        pytest.param(30, 120, 125, "120", id="the template's is increased"),
        pytest.param(300, 120, 300, "120", id="the template's is longer and kept"),
        pytest.param(None, 10, None, "10", id="within Kubernetes' default"),
    ],
)
def test_a_pods_grace_period_leaves_time_to_save(
    of_pod: int | None, wanted: int | None, pod_gets: int | None, workers_get: str
) -> None:
    template = {
        "spec": {**TEMPLATE["spec"], **({"terminationGracePeriodSeconds": of_pod} if of_pod is not None else {})}
    }
    lifecycle = {"gracefulShutdownSeconds": wanted} if wanted is not None else {}
    pod = worker_pod(make_job(template=template, spec={"lifecycle": lifecycle}), index=0, run=1, endpoint="etcd:2379")
    assert pod["spec"].get("terminationGracePeriodSeconds") == pod_gets
    assert environment(pod)["PET_SHUTDOWN_TIMEOUT"] == workers_get


REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def test_avoiding_failing_nodes_is_added_to_the_users_own_preferences() -> None:
    own: dict[str, Any] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}]}}}
    job = make_job(template={"spec": {**TEMPLATE["spec"], "affinity": own}})
    pod = worker_pod(job, index=0, run=1, endpoint="etcd:2379", avoid=["bad-1", "bad-2"])
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    assert affinity[REQUIRED] == own["nodeAffinity"][REQUIRED]
    (term,) = affinity[PREFERRED]
    fields = term["preference"]["matchFields"]
    assert [(field["operator"], field["values"]) for field in fields] == [("NotIn", ["bad-1"]), ("NotIn", ["bad-2"])]
    assert pod["metadata"]["labels"]["elasticjob.dev/template-hash"] == hash_of(job), "it is the same template"
    assert PREFERRED not in own["nodeAffinity"], "the job is unchanged"


PRIORITIES = [("", "high", "high"), ("high", "high", "high"), ("low", "", "low"), ("", "", None)]


@pytest.mark.parametrize(("of_template", "wanted", "given"), PRIORITIES)
def test_the_priority_class_comes_from_the_template_or_the_spec(
    of_template: str, wanted: str, given: str | None
) -> None:
    template = {"spec": {**TEMPLATE["spec"], **({"priorityClassName": of_template} if of_template else {})}}
    pod = worker_pod(
        make_job(template=template, spec={"scheduling": {"priorityClassName": wanted}}), index=0, run=1, endpoint="e:1"
    )
    assert pod["spec"].get("priorityClassName") == given


def test_two_different_priority_classes_are_rejected() -> None:
    job = make_job(
        template={"spec": {**TEMPLATE["spec"], "priorityClassName": "low"}},
        spec={"scheduling": {"priorityClassName": "high"}},
    )
    with pytest.raises(
        InvalidTemplateError,
        match=r"priorityClassName is 'low', but spec.scheduling.priorityClassName is 'high': remove",
    ):
        worker_pod(job, index=0, run=1, endpoint="e:1")


def test_settings_for_c10d_precede_those_of_the_user() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["env"] = [
        {"name": "PET_RDZV_CONF", "value": "timeout=60,read_timeout=5"},
        {"name": "A", "value": "1"},
    ]
    names = [
        variable["name"]
        for variable in build(template=template, spec={"rendezvous": {"backend": "c10d"}})["spec"]["containers"][0][
            "env"
        ]
    ]
    assert names.count("PET_RDZV_CONF") == 1
    assert environment(build(template=template, spec={"rendezvous": {"backend": "c10d"}}))["PET_RDZV_CONF"] == (
        "is_host=false,timeout=60,read_timeout=5"
    )
    assert environment(build(template=template))["PET_RDZV_CONF"] == "timeout=60,read_timeout=5"
    template["spec"]["containers"][0]["env"] = [
        {"name": "PET_RDZV_CONF", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    ]
    with pytest.raises(InvalidTemplateError, match="PET_RDZV_CONF"):
        build(template=template, spec={"rendezvous": {"backend": "c10d"}})


def with_certificates(**job: Any) -> dict[str, Any]:
    return worker_pod(
        make_job(**job), index=0, run=1, endpoint="https://etcd:2379", certificates_secret="digits-etcd-1"
    )


def test_worker_pods_mount_the_certificates_of_their_etcd_but_not_its_own_key() -> None:
    pod = with_certificates(template=TWO, workers={"container": "trainer"})
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "elasticjob-etcd-certificates"]
    assert volume["secret"]["secretName"] == "digits-etcd-1"
    assert volume["secret"]["defaultMode"] == 0o444, "readable for whatever user the image has"
    assert {item["key"] for item in volume["secret"]["items"]} == {"ca.crt", "worker.crt", "worker.key"}
    logger, trainer = pod["spec"]["containers"]
    assert "volumeMounts" not in logger
    assert trainer["volumeMounts"] == [
        {"name": "elasticjob-etcd-certificates", "mountPath": "/etc/elasticjob/etcd", "readOnly": True}
    ]


def test_the_users_rendezvous_settings_follow_the_certificates() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["env"] = [{"name": "PET_RDZV_CONF", "value": "lease_ttl=3"}]
    folder = "/etc/elasticjob/etcd"
    assert environment(with_certificates(template=template))["PET_RDZV_CONF"] == (
        f"cacert={folder}/ca.crt,cert={folder}/worker.crt,key={folder}/worker.key,lease_ttl=3"
    )


def test_a_volume_with_the_name_of_ours_is_refused_with_the_remedy() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["volumes"] = [{"name": "elasticjob-etcd-certificates", "emptyDir": {}}]
    with pytest.raises(InvalidTemplateError, match="for the job's etcd: rename it"):
        with_certificates(template=template)
