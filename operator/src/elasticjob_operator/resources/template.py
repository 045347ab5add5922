"""Validation of the pod template beyond the CRD's schema."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from elasticjob_api import ElasticJob

TEMPLATE = "spec.workers.template"


class InvalidTemplateError(ValueError):
    """The pod template is invalid; the message names the field and the remedy. The schema rejects most such templates,
    but a job may be older than the schema."""


def training_container(job: ElasticJob, spec: dict[str, Any]) -> dict[str, Any]:
    containers = spec.get("containers")
    if not containers:
        raise InvalidTemplateError(f"{TEMPLATE}.spec.containers must be a list of at least one container")
    wanted = job.spec.workers.container
    if not wanted:
        first: dict[str, Any] = containers[0]
        if not first.get("name"):
            raise InvalidTemplateError(f"{TEMPLATE}.spec.containers[0].name is missing")
        return first
    for container in containers:
        if container.get("name") == wanted:
            found: dict[str, Any] = container
            return found
    there = ", ".join(str(container.get("name")) for container in containers)
    raise InvalidTemplateError(
        f"spec.workers.container is {wanted!r}, but {TEMPLATE}.spec.containers has only: {there}"
    )


def mount(spec: dict[str, Any], container: dict[str, Any], volume: dict[str, Any], path: str, **more: Any) -> None:
    """Adds a volume to a pod, and mounts it into one of its containers. `more`: fields of that mount."""
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    mounted = {"name": volume["name"], "mountPath": path, **more}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mounted]


def check_volume_name(spec: Mapping[str, Any], name: str, whose: str) -> None:
    """Raises InvalidTemplateError where a volume of the user's has that name."""
    if any(volume.get("name") == name for volume in spec.get("volumes") or []):
        raise InvalidTemplateError(f"{TEMPLATE}.spec.volumes has {name!r}, the name of {whose}: rename it")


def check_container(container: Mapping[str, Any]) -> None:
    """Checks for mistakes that the API server explains poorly or accepts. Raises InvalidTemplateError."""
    name = container.get("name")
    for field in ("command", "args"):
        words = container.get(field)
        if words is not None and not isinstance(words, list):
            raise InvalidTemplateError(
                f"{field} of container {name} is {words!r:.100}: write a list, such as [torchrun, train.py]"
            )
        for word in words or []:
            if not isinstance(word, str):
                raise InvalidTemplateError(f"{field} of container {name} has {word!r}, which is not a string: quote it")
    variables = container.get("env") or []
    for variable in variables:
        value = variable.get("value")
        if value is not None and not isinstance(value, str):
            raise InvalidTemplateError(
                f"env {variable.get('name')} of container {name} is {value!r}, which is not a string: quote it"
            )
    twice = [
        str(each)
        for each, count in collections.Counter(variable.get("name") for variable in variables).items()
        if count > 1
    ]
    if twice:
        raise InvalidTemplateError(
            f"env of container {name} has {', '.join(twice)} more than once, and only the last counts: remove the "
            "others"
        )
