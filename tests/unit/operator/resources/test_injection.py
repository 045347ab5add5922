"""Worker pods with the runtime."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from elasticjob_operator.kube.convert import node_of, pod_of
from elasticjob_operator.resources.injection import InjectionWay, check_injectable, inject, wrapped
from elasticjob_operator.resources.pods import worker_pod
from elasticjob_operator.resources.template import InvalidTemplateError

from tests.unit.operator.builders import NOW, make_job

IMAGE = "registry/runtime:1"
TEMPLATE: dict[str, Any] = {
    "spec": {
        "initContainers": [{"name": "data", "image": "data:1"}],
        "containers": [
            {"name": "logger", "image": "log:1", "command": ["log"]},
            {
                "name": "trainer",
                "image": "t:1",
                "command": ["elasticrun"],
                "args": ["train.py"],
                "env": [{"name": "PYTHONPATH", "value": "/mine"}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
            },
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
}


def build(way: InjectionWay, template: dict[str, Any] = TEMPLATE, **workers: Any) -> dict[str, Any]:
    job = make_job(template=copy.deepcopy(template), workers={"container": "trainer", **workers})
    return inject(worker_pod(job, index=0, run=1, endpoint="x:1"), way, IMAGE, "IfNotPresent")


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    return next(container for container in pod["spec"]["containers"] if container["name"] == "trainer")


@pytest.mark.parametrize("way", [InjectionWay.IMAGE_VOLUME, InjectionWay.INIT_CONTAINER])
def test_only_the_training_container_gets_the_runtime_read_only(way: InjectionWay) -> None:
    pod = build(way)
    assert pod["spec"]["containers"][0] == TEMPLATE["spec"]["containers"][0]
    container = trainer(pod)
    assert container["command"] == ["python3", "/opt/elasticjob/launch.py", "elasticrun"]
    assert container["args"] == ["train.py"]
    assert container["volumeMounts"] == [
        {"name": "scratch", "mountPath": "/tmp"},
        {"name": "elasticjob-runtime", "mountPath": "/opt/elasticjob", "readOnly": True},
    ]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["PYTHONPATH"] == "/mine"
    assert variables["ELASTICJOB_RUNTIME"] == f"{IMAGE} ({way.value})"
    assert pod_of(
        {**pod, "metadata": {**pod["metadata"], "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    ).injected


def test_an_image_volume_adds_no_container() -> None:
    pod = build(InjectionWay.IMAGE_VOLUME)
    assert [init_container["name"] for init_container in pod["spec"]["initContainers"]] == ["data"]
    volume = {"name": "elasticjob-runtime", "image": {"reference": IMAGE, "pullPolicy": "IfNotPresent"}}
    assert pod["spec"]["volumes"] == [{"name": "scratch", "emptyDir": {}}, volume]


def test_the_init_container_runs_first_and_meets_the_restricted_standard() -> None:
    pod = build(InjectionWay.INIT_CONTAINER)
    ours, theirs = pod["spec"]["initContainers"]
    assert theirs == {**TEMPLATE["spec"]["initContainers"][0], "terminationMessagePolicy": "FallbackToLogsOnError"}
    assert ours["image"] == IMAGE
    assert ours["args"] == ["/opt/elasticjob"]
    assert ours["resources"]["requests"] == ours["resources"]["limits"]
    assert ours["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["spec"]["volumes"][-1] == {"name": "elasticjob-runtime", "emptyDir": {}}


def test_a_pod_that_runs_as_root_can_start() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["securityContext"] = {"runAsUser": 0}
    ours = build(InjectionWay.INIT_CONTAINER, template)["spec"]["initContainers"][0]
    assert "runAsNonRoot" not in ours["securityContext"]


def test_without_injection_the_pod_is_unchanged() -> None:
    job = make_job(template=copy.deepcopy(TEMPLATE), workers={"container": "trainer"})
    assert build(InjectionWay.NONE) == worker_pod(job, index=0, run=1, endpoint="x:1")


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        (["elasticrun", "train.py"], "python3"),
        (["torchrun", "train.py"], "python3"),
        (["sh", "-c", "elasticrun train.py"], "python3"),
        (["python", "train.py"], "python"),
        (["/opt/conda/bin/python3.11", "-m", "pkg"], "/opt/conda/bin/python3.11"),
    ],
)
def test_the_launcher_runs_with_the_python_of_the_command(command: list[str], interpreter: str) -> None:
    assert wrapped(command) == [interpreter, "/opt/elasticjob/launch.py", *command]


def without(field: str) -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    del template["spec"]["containers"][1][field]
    return template


def with_trainer(**fields: Any) -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][1] |= fields
    return template


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no command": (without("command"), "container trainer has no command"),
    "an empty command": (with_trainer(command=[]), "container trainer has no command"),
    "a mount at our path": (
        with_trainer(volumeMounts=[{"name": "scratch", "mountPath": "/opt/elasticjob/"}]),
        "mounts a volume at /opt/elasticjob, where ElasticJob mounts the runtime: choose another path",
    ),
    "a volume of our name": (
        {"spec": {**TEMPLATE["spec"], "volumes": [{"name": "elasticjob-runtime", "emptyDir": {}}]}},
        "has the name 'elasticjob-runtime', which is reserved for ElasticJob: rename it",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_template_without_room_for_the_runtime_is_rejected_with_a_remedy(name: str) -> None:
    template, words = WRONG[name]
    with pytest.raises(InvalidTemplateError) as rejected:
        check_injectable(make_job(template=template, workers={"container": "trainer"}))
    assert words in str(rejected.value)


def status_of(way: InjectionWay, **status: Any) -> Any:
    pod = build(way)
    metadata = {**pod["metadata"], "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return pod_of({**pod, "metadata": metadata, "status": status})


def waiting(name: str, message: str) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": "ErrImagePull", "message": message}}}


@pytest.mark.parametrize(
    ("way", "status", "runtime"),
    [
        (InjectionWay.IMAGE_VOLUME, {"containerStatuses": [waiting("trainer", f'pulling "{IMAGE}": no')]}, True),
        (InjectionWay.IMAGE_VOLUME, {"containerStatuses": [waiting("trainer", 'pulling "t:1": no')]}, False),
        (InjectionWay.INIT_CONTAINER, {"initContainerStatuses": [waiting("elasticjob-runtime", "no")]}, True),
        (InjectionWay.INIT_CONTAINER, {"initContainerStatuses": [waiting("data", "no")]}, False),
    ],
)
def test_the_runtime_image_is_distinguished_from_other_images_that_cannot_be_pulled(
    way: InjectionWay, status: dict[str, Any], runtime: bool
) -> None:
    pod = status_of(way, phase="Pending", **status)
    assert pod.blocked is not None
    assert pod.blocked.runtime is runtime


def test_a_failed_copy_of_the_runtime_is_detected() -> None:
    ended = {"terminated": {"exitCode": 255, "reason": "Error", "message": "exec format error"}}
    statuses = [{"name": "elasticjob-runtime", "state": ended}]
    pod = status_of(InjectionWay.INIT_CONTAINER, phase="Failed", initContainerStatuses=statuses)
    assert pod.init_end is not None
    assert (pod.init_end.exit_code, pod.init_end.message) == (255, "exec format error")
    done = [{"name": "elasticjob-runtime", "state": {"terminated": {"exitCode": 0}}}]
    assert status_of(InjectionWay.INIT_CONTAINER, phase="Failed", initContainerStatuses=done).init_end is None


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.3.7"}, True),
        ({"kubeletVersion": "v1.33.0", "containerRuntimeVersion": "containerd://2.3.7"}, False),
        ({}, False),
    ],
)
def test_image_volumes_depend_on_the_versions_of_the_nodes(info: dict[str, str], expected: bool) -> None:
    body = {
        "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert node_of(body, None, NOW).mounts_images is expected
