"""The runtime in a worker pod: mounted from its image or copied by an init container, and the command that finds it.

What happens inside the container is elasticjob_runtime.launch; why, docs/design/0015-injection.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from elasticjob_api import ElasticJob
from elasticjob_runtime.contract import Env, is_python

from elasticjob_operator import names
from elasticjob_operator.resources.template import InvalidTemplateError, mount, training_container

_INIT_RESOURCES = {"cpu": "100m", "memory": "32Mi"}
"""Requests and limits alike: with them, a pod that has the QoS class Guaranteed keeps it, and quotas are satisfied. A
pod's own requests are larger, so these change nothing that the scheduler counts."""


class InjectionWay(enum.Enum):
    NONE = "none"
    IMAGE_VOLUME = "image volume"
    INIT_CONTAINER = "init container"


def inject(pod: dict[str, Any], way: InjectionWay, image: str, pull_policy: str) -> dict[str, Any]:
    """Adds the runtime to a worker pod of a job that is injectable, in place, and returns the pod."""
    if way is InjectionWay.NONE:
        return pod
    spec = pod["spec"]
    container = next(container for container in spec["containers"] if _trains(container))
    if way is InjectionWay.INIT_CONTAINER:
        # The first, so that it never waits for a user's.
        spec["initContainers"] = [_init_container(spec, image, pull_policy), *(spec.get("initContainers") or [])]
    mount(spec, container, _volume(way, image, pull_policy), names.RUNTIME_PATH, readOnly=True)
    container["command"] = wrapped(container["command"])
    container["env"] = [{"name": Env.RUNTIME, "value": f"{image} ({way.value})"}, *(container.get("env") or [])]
    return pod


def has_image_volume(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has the runtime as an image volume."""
    volumes = pod["spec"].get("volumes") or []
    return any(volume.get("name") == names.RUNTIME_VOLUME and "image" in volume for volume in volumes)


def wrapped(command: list[str]) -> list[str]:
    """The command that runs `command` with the runtime: by the Python that it names, or else by the image's python3."""
    interpreter = command[0] if is_python(command[0]) else "python3"
    return [interpreter, f"{names.RUNTIME_PATH}/launch.py", *command]


def _trains(container: Mapping[str, Any]) -> bool:
    return any(variable.get("name") == Env.MEMBER_ID for variable in container.get("env") or [])


def check_injectable(job: ElasticJob) -> None:
    """Checks whether the runtime can be injected into the job's worker pods. Raises InvalidTemplateError."""
    spec = job.spec.workers.template.get("spec") or {}
    container = training_container(job, spec)
    name = container["name"]
    if not container.get("command"):
        raise InvalidTemplateError(
            f"container {name} has no command. To start it with the runtime, ElasticJob must know what to run: set the "
            "command, such as [elasticrun, train.py], or set spec.workers.runtime.inject to None if the image starts "
            "the runtime itself"
        )
    named = [*(spec.get("volumes") or []), *(spec.get("initContainers") or []), *spec["containers"]]
    if any(item.get("name") == names.RUNTIME_VOLUME for item in named):
        raise InvalidTemplateError(
            f"a volume or container has the name {names.RUNTIME_VOLUME!r}, which is reserved for ElasticJob: rename it"
        )
    paths = {str(volume_mount.get("mountPath")) for volume_mount in container.get("volumeMounts") or []}
    paths |= {job.spec.checkpoint.directory} if job.spec.checkpoint is not None else set()
    if names.RUNTIME_PATH in {path.rstrip("/") for path in paths}:
        raise InvalidTemplateError(
            f"container {name} mounts a volume at {names.RUNTIME_PATH}, where ElasticJob mounts the runtime: choose "
            "another path, or set spec.workers.runtime.inject to None"
        )


def _volume(way: InjectionWay, image: str, pull_policy: str) -> dict[str, Any]:
    if way is InjectionWay.IMAGE_VOLUME:
        return {"name": names.RUNTIME_VOLUME, "image": {"reference": image, "pullPolicy": pull_policy}}
    return {"name": names.RUNTIME_VOLUME, "emptyDir": {}}


def _init_container(spec: Mapping[str, Any], image: str, pull_policy: str) -> dict[str, Any]:
    """Allowed by the restricted Pod Security level, whatever user the pod has."""
    of_pod = spec.get("securityContext") or {}
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if of_pod.get("runAsUser") != 0:  # otherwise root by the user's wish, as in the training container
        security["runAsNonRoot"] = True
    return {
        "name": names.RUNTIME_VOLUME,
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": [names.RUNTIME_PATH],
        "securityContext": security,
        "resources": {"requests": dict(_INIT_RESOURCES), "limits": dict(_INIT_RESOURCES)},
        # Its log is the only place that says why a program of another architecture does not run.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": names.RUNTIME_VOLUME, "mountPath": names.RUNTIME_PATH}],
    }
