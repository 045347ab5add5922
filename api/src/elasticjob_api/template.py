"""The part of a pod template that the CRD knows.

The full schema of a PodTemplateSpec is 382 kB and would prune fields that newer clusters add, so everything is
preserved as written. Declared are only:

- what the validation rules in `elasticjob_api.crd` read, because CEL sees only declared fields;
- the names of the other fields, without a type. CEL's `==` compares those exactly, but of undeclared fields only the
  number and the values of those on both sides: a template in which `nodeSelector` became `tolerations` would count as
  unchanged.

A dry-run create checks whether the whole makes a valid pod. What the operator itself reads and extends must have the
type that it has in a pod: `check_types`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticjob_runtime.contract import Env
from pydantic_core import PydanticCustomError

RESERVED_VARIABLES = Env.RESERVED
"""Environment variables that the training container must not set, because ElasticJob does."""
MAX_CONTAINERS = 32
MAX_ENV = 1024
MAX_LABELS = 128

POD_SPEC_FIELDS = """
    affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks ephemeralContainers hostAliases
    hostIPC hostNetwork hostPID hostUsers hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os
    overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources runtimeClassName
    schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName
    setHostnameAsFQDN shareProcessNamespace terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes
""".split()  # noqa: SIM905 a list of 40 literals is harder to read
CONTAINER_FIELDS = """
    args command envFrom image imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy resources
    restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty
    volumeDevices volumeMounts workingDir
""".split()  # noqa: SIM905 as above
ENV_FIELDS = ["value", "valueFrom"]
VOLUME_SOURCES = """
    awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir ephemeral fc flexVolume
    flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi nfs photonPersistentDisk portworxVolume projected
    quobyte rbd scaleIO secret storageos vsphereVolume
""".split()  # noqa: SIM905 as above
"""Fields of core/v1 as of Kubernetes 1.36, less those that are declared with a type. An integration test compares them
with the API server's."""

Schema = dict[str, Any]


def untyped(names: Iterable[str], at: str) -> dict[str, Schema]:
    """Fields without a type. `at`: where kubectl explains them."""
    return {
        name: {"description": f"See kubectl explain {at}.{name}.", "x-kubernetes-preserve-unknown-fields": True}
        for name in sorted(names)
    }


def _object(description: str, *, required: list[str], opaque: list[str], at: str, **properties: Schema) -> Schema:
    """An object that preserves all fields. `opaque`: names of those without a type; `at`: where kubectl explains
    them."""
    return {
        **({"description": description} if description else {}),
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        **({"required": required} if required else {}),
        "properties": {**properties, **untyped(opaque, at)},
    }


def _text(description: str, **bounds: int) -> Schema:
    return {"description": description, "type": "string", **bounds}


def _list(description: str, items: Schema, **bounds: int) -> Schema:
    return {"description": description, "type": "array", **bounds, "items": items}


_ENV = _object(
    "An environment variable (core/v1 EnvVar).",
    required=["name"],
    opaque=ENV_FIELDS,
    at="pod.spec.containers.env",
    name=_text("Name of the variable.", minLength=1, maxLength=256),
)
_CONTAINER = _object(
    "A container (core/v1 Container).",
    required=["name"],
    opaque=CONTAINER_FIELDS,
    at="pod.spec.containers",
    name=_text("Name of the container.", minLength=1, maxLength=63),
    restartPolicy=_text(
        "Must be Never or unset in the training container: ElasticJob replaces failed worker pods itself.", maxLength=16
    ),
    env=_list(
        "Environment variables. The training container must not set those that ElasticJob sets itself.",
        _ENV,
        maxItems=MAX_ENV,
    ),
)
_LABELS: Schema = {
    "description": "Labels of the worker pods. The prefix elasticjob.dev/ is reserved.",
    "type": "object",
    "maxProperties": MAX_LABELS,
    "additionalProperties": {"type": "string", "maxLength": 63},
}

POD_TEMPLATE_SCHEMA = _object(
    "",  # the description of the field is that of the model
    required=["spec"],
    opaque=[],
    at="pod",
    metadata=_object(
        "Labels and annotations of the worker pods.",
        required=[],
        opaque=["annotations"],
        at="pod.metadata",
        labels=_LABELS,
    ),
    spec=_object(
        "Spec of the worker pods (core/v1 PodSpec).",
        required=["containers"],
        opaque=POD_SPEC_FIELDS,
        at="pod.spec",
        # An atomic list, not one keyed by name: its order counts, because the first container trains by default.
        containers=_list("Containers of a worker pod.", _CONTAINER, minItems=1, maxItems=MAX_CONTAINERS),
        restartPolicy=_text("Must be Never or unset: ElasticJob replaces failed worker pods itself.", maxLength=16),
        activeDeadlineSeconds={
            "description": "Must be unset: use spec.lifecycle.activeDeadlineSeconds.",
            "type": "integer",
            "format": "int64",
        },
        hostname=_text("Must be unset: ElasticJob sets it to <job>-worker-<index>.", maxLength=63),
        subdomain=_text("Must be unset: ElasticJob sets it to the job's Service.", maxLength=63),
    ),
)

BELOW = "below"
"""Type of an error whose message begins with a path below the field that it is about."""
_OBJECT: Schema = {}
_OBJECTS: list[Any] = [_OBJECT]
_CONTAINER_TYPES: Schema = {
    "name": str,
    "env": [{"name": str}],
    **dict.fromkeys(("envFrom", "ports", "resizePolicy", "volumeDevices", "volumeMounts"), _OBJECTS),
    **dict.fromkeys(("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"), _OBJECT),
    **dict.fromkeys(("resources", "securityContext"), _OBJECT),
}
_CONTAINERS: list[Any] = [_CONTAINER_TYPES]
_TYPES: Schema = {
    "metadata": {"labels": _OBJECT, "annotations": _OBJECT},
    "spec": {
        **dict.fromkeys(("containers", "initContainers", "ephemeralContainers"), _CONTAINERS),
        **dict.fromkeys(("hostAliases", "imagePullSecrets", "readinessGates", "resourceClaims"), _OBJECTS),
        **dict.fromkeys(("schedulingGates", "tolerations", "topologySpreadConstraints", "volumes"), _OBJECTS),
        **dict.fromkeys(("dnsConfig", "nodeSelector", "os", "overhead", "resources", "securityContext"), _OBJECT),
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": _OBJECTS},
            **dict.fromkeys(("podAffinity", "podAntiAffinity"), _OBJECT),
        },
    },
}
"""The objects, lists of objects and names in a pod template, by field."""


def check_types(template: dict[str, Any]) -> dict[str, Any]:
    """Returns `template`. Raises PydanticCustomError where an object or a list of objects is something else."""
    _check_type(template, _TYPES, "")
    return template


def _check_type(value: Any, wanted: Any, path: str) -> None:
    if isinstance(wanted, list) and isinstance(value, list):
        for index, item in enumerate(value):
            _check_type(item, wanted[0], f"{path}[{index}]")
    elif isinstance(wanted, dict) and isinstance(value, dict):
        for name, below in wanted.items():
            if value.get(name) is not None:
                _check_type(value[name], below, f"{path}.{name}")
    elif wanted is not str or not isinstance(value, str):
        kind = (
            "a list of objects" if isinstance(wanted, list) else "an object" if isinstance(wanted, dict) else "a string"
        )
        raise PydanticCustomError(BELOW, f"{path} is {value!r:.100}: write {kind}")
