"""How the runtime gets into worker pods."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from elasticjob_api import ConditionType, Reason
from elasticjob_operator.node_state import NodeCounts
from elasticjob_operator.planning import CreatePod, DryRunCreate, Plan
from elasticjob_operator.policies.failures import Cost, classify_failure
from elasticjob_operator.policies.injection import injection, is_about_volumes, mounts_images
from elasticjob_operator.resources.injection import InjectionWay, has_image_volume
from elasticjob_operator.resources.pods import hash_of
from elasticjob_operator.settings import Settings
from elasticjob_operator.state import Admission, ContainerEnd, Pod, PodPhase

from tests.unit.operator.builders import NOW, ended, make_job, make_node, make_pod, make_status
from tests.unit.operator.planning.plans import ask, condition, kinds, made, said

IMAGE = "registry/runtime:1"
SETTINGS = Settings(endpoint="etcd:2379", runtime_image=IMAGE)
NONE, VOLUME, INIT = InjectionWay.NONE, InjectionWay.IMAGE_VOLUME, InjectionWay.INIT_CONTAINER
ALL, SOME, NO_NODES = NodeCounts(total=3, mounting_images=3), NodeCounts(total=3, mounting_images=2), NodeCounts()


def job(inject: str = "Auto", command: list[str] | None = None, **spec: Any) -> Any:
    container: dict[str, Any] = {"name": "trainer", "image": "trainer:1", "command": command or ["elasticrun", "t.py"]}
    return make_job(
        replicas=2, min=2, max=2, spec=spec, workers={"runtime": {"inject": inject}},
        template={"spec": {"containers": [container]}},
    )  # fmt: skip


C10D: dict[str, Any] = {"rendezvous": {"backend": "c10d"}}
INJECTED = dataclasses.replace(make_pod(), injected=True)

CASES: dict[str, tuple[Any, dict[str, Any], InjectionWay]] = {
    "every node can": (job(), {}, VOLUME),
    "one node cannot": (job(), {"nodes": SOME}, INIT),
    "no node is known yet": (job(), {"nodes": NO_NODES}, INIT),
    "nodes may not be read": (job(), {"nodes": None}, INIT),
    "the API server rejects the volume": (job(), {"rejected": True}, INIT),
    "torchrun with c10d": (job(command=["/usr/bin/torchrun", "t.py"], **C10D), {}, NONE),
    "torchrun with our plug-in": (job(command=["torchrun", "t.py"]), {}, VOLUME),
    "elasticrun with c10d": (job(**C10D), {}, VOLUME),
    "no image in the chart": (job(), {"image": ""}, NONE),
    "None": (job("None"), {}, NONE),
    "ImageVolume": (job("ImageVolume"), {"nodes": SOME, "rejected": True}, VOLUME),
    "InitContainer": (job("InitContainer"), {}, INIT),
    "the run has injected pods": (job(), {"pods": [INJECTED]}, VOLUME),
    "the run has pods without": (job(), {"pods": [INJECTED, make_pod(1)]}, NONE),
}


@pytest.mark.parametrize("name", CASES)
def test_the_way_of_injection(name: str) -> None:
    wanted, situation, way = CASES[name]
    found = injection(wanted, **{"image": IMAGE, "nodes": ALL, "rejected": False, "pods": [], **situation})
    assert (found.way, found.problem) == (way, None)


@pytest.mark.parametrize(
    ("kubelet", "container_runtime", "expected"),
    [
        ("v1.36.3", "containerd://2.3.7", True),
        ("v1.35.0-gke.100", "containerd://2.1.0", True),
        ("v1.37.0+k3s1", "containerd://v2.2.0-k3s1", True),
        ("v1.35.1", "cri-o://1.35.0", True),
        ("v1.34.9", "containerd://2.3.7", False),
        ("v1.36.3", "containerd://1.7.28", False),
        ("v1.36.3", "containerd://2.0.5", False),
        ("v1.36.3", "docker://28.0.0", False),
        ("kwok-v0.8.0", "kwok-v0.8.0", False),
        ("fake", "", False),
        ("", "", False),
    ],
)
def test_node_versions_tell_whether_a_node_mounts_images(kubelet: str, container_runtime: str, expected: bool) -> None:
    assert mounts_images(kubelet, container_runtime) is expected


@pytest.mark.parametrize(
    ("rejection", "invalid", "expected"),
    [
        ("spec.volumes[0]: Required value: must specify a volume type", True, True),
        ('violates PodSecurity "restricted": restricted volume types (volume "elasticjob-runtime" ...)', False, True),
        ("exceeded quota: compute, requested: pods=1, used: pods=10, limited: pods=10", False, False),
        ('serviceaccount "trainer" not found', False, False),
    ],
)
def test_only_a_rejection_that_may_be_about_the_volume_leads_to_the_init_container(
    rejection: str, invalid: bool, expected: bool
) -> None:
    assert is_about_volumes(rejection, invalid=invalid) is expected


NODES: dict[str, Any] = {"nodes": {"a": dataclasses.replace(make_node("a"), mounts_images=True)}}


def dry_run(found: Plan) -> DryRunCreate:
    assert kinds(found) == ["DryRunCreate"]
    (action,) = found.actions
    assert isinstance(action, DryRunCreate)
    return action


def test_a_rejected_image_volume_is_tried_as_an_init_container_before_anything_is_reported() -> None:
    first = ask(job(), settings=SETTINGS, **NODES)
    asked = dry_run(first)
    assert asked.image_volume
    assert has_image_volume(asked.body)
    rejection = Admission(
        template_hash=asked.template_hash, image_volume=True, rejection="no such volume", invalid=True, at=NOW
    )
    second = ask(job(), settings=SETTINGS, admission=rejection, image_volume_rejected=True, **NODES)
    asked = dry_run(second)
    assert not asked.image_volume
    assert [init_container["name"] for init_container in asked.body["spec"]["initContainers"]] == ["elasticjob-runtime"]
    assert second.status == first.status
    accepted = Admission(template_hash=asked.template_hash, at=NOW)
    third = ask(job(), settings=SETTINGS, admission=accepted, image_volume_rejected=True, **NODES)
    pods = [action.body for action in made(third, CreatePod)]
    assert len(pods) == 2
    assert not any(map(has_image_volume, pods))


def test_a_user_who_asks_for_an_image_volume_is_told_of_its_rejection() -> None:
    wanted = job("ImageVolume")
    rejection = Admission(
        template_hash=hash_of(wanted), image_volume=True, rejection="no such volume", invalid=True, at=NOW
    )
    found = ask(wanted, settings=SETTINGS, admission=rejection, image_volume_rejected=True, **NODES)
    assert condition(found, ConditionType.ACCEPTED) == ("False", "InvalidPodTemplate")


def test_a_container_without_a_command_is_a_condition_that_says_what_to_write() -> None:
    found = ask(make_job(), settings=SETTINGS, **NODES)
    accepted = said(found, ConditionType.ACCEPTED)
    assert condition(found, ConditionType.ACCEPTED) == ("False", "InvalidPodTemplate")
    assert "container trainer has no command" in accepted
    assert "such as [elasticrun, train.py]" in accepted
    assert "inject to None" in accepted
    assert not found.actions
    assert [event.warning for event in found.events] == [True]


def test_another_way_to_inject_the_runtime_is_another_template() -> None:
    assert len({hash_of(job(inject)) for inject in ("Auto", "ImageVolume", "InitContainer", "None")}) == 4


FAILED = PodPhase.FAILED


def injected(end: ContainerEnd | None = None, *, copied: ContainerEnd | None = None, **pod: Any) -> Pod:
    copied = dataclasses.replace(copied, container="elasticjob-runtime") if copied is not None else None
    return dataclasses.replace(make_pod(0, FAILED, end=end, **pod), injected=True, init_end=copied)


NO_PYTHON = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: "
    'exec: "python3": executable file not found in $PATH'
)
NO_SUCH_PYTHON = (
    "unable to start container process: "
    'exec: "/opt/venv/bin/python": stat /opt/venv/bin/python: no such file or directory'
)
TOO_OLD = (
    "elasticjob: the runtime needs Python 3.10 or newer, but /usr/bin/python3 of the image is 3.9: use another image"
)

UNUSABLE: dict[str, tuple[Pod, str]] = {
    "no Python": (injected(ended(128, reason="StartError", message=NO_PYTHON)), "the image has no python3"),
    "no Python where the command says": (
        injected(ended(128, reason="StartError", message=NO_SUCH_PYTHON)),
        "the image has no /opt/venv/bin/python",
    ),
    "a Python that is too old": (injected(ended(72, message=TOO_OLD)), "the runtime needs Python 3.10 or newer"),
    "another architecture": (
        injected(copied=ended(255, message="exec /install/cp: exec format error\n")),
        "kubernetes.io/arch",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_runtime_that_cannot_run_fails_the_job_with_the_remedy(name: str) -> None:
    pod, detail = UNUSABLE[name]
    failure = classify_failure(pod)
    assert (failure.reason, failure.cost, failure.ends_job) == ("RuntimeUnusable", Cost.COUNTS, True)
    found = ask(job(), dataclasses.replace(pod, template_hash=hash_of(job())), settings=SETTINGS, **NODES)
    failed = found.status.condition(ConditionType.FAILED)
    assert failed is not None
    assert (failed.status.value, failed.reason) == ("True", "RuntimeUnusable")
    assert detail in failed.message
    assert [event.warning for event in found.events if event.reason is Reason.RUNTIME_UNUSABLE] == [True]


def test_a_runtime_that_cannot_be_copied_costs_the_job_nothing() -> None:
    failure = classify_failure(injected(copied=ended(1, message="cp: write error: No space left on device")))
    assert (failure.reason, failure.cost, failure.ends_job) == ("RuntimeUnavailable", Cost.FREE_BUT_WAIT, False)
    assert "failed with exit code 1: cp: write error: No space left on device" in failure.detail


def test_a_job_that_has_trained_survives_a_node_on_which_the_runtime_cannot_run() -> None:
    pod, _ = UNUSABLE["another architecture"]
    trained = job().model_copy(update={"status": make_status(ConditionType.ACCEPTED, round=3)})
    found = ask(trained, dataclasses.replace(pod, template_hash=hash_of(trained)), settings=SETTINGS, **NODES)
    assert not found.status.is_true(ConditionType.FAILED)
    assert found.status.restarts.total == 1
    assert found.status.last_failure is not None
    assert found.status.last_failure.reason == "RuntimeUnusable"


@pytest.mark.parametrize(
    "pod",
    [
        injected(ended(1)),
        injected(ended(128, reason="StartError", message='exec: "x": permission denied')),
        dataclasses.replace(UNUSABLE["no Python"][0], injected=False),
        injected(ended(72), disruption="EvictionByEvictionAPI"),
    ],
)
def test_other_failures_are_judged_as_ever(pod: Pod) -> None:
    assert classify_failure(pod).reason != "RuntimeUnusable"
