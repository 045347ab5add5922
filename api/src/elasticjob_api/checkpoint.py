"""`spec.checkpoint` of an ElasticJob: where the training keeps its checkpoints."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from elasticjob_api.crd import validation
from elasticjob_api.fields import Model
from elasticjob_api.template import VOLUME_SOURCES, untyped


class Claim(Model, frozen=True):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=validation.CLAIM)]
    """Name of the claim. Its access mode must let the nodes of all worker pods mount it, such as ReadWriteMany."""
    read_only: bool | None = None
    """Whether to mount the volume read-only. Default: false."""


def _declare_sources(schema: dict[str, Any]) -> None:
    """Names the sources that have no type here: CEL's `==` compares only fields that it knows."""
    schema["properties"] |= untyped(VOLUME_SOURCES, "pod.spec.volumes")
    schema.pop("additionalProperties")
    schema |= {"minProperties": 1, "maxProperties": 1, "x-kubernetes-preserve-unknown-fields": True}


class Volume(Model, frozen=True, extra="allow", json_schema_extra=_declare_sources):
    """Any source of a core/v1 Volume, without its name. The dry run of a worker pod validates it."""

    persistent_volume_claim: Claim | None = None
    """A PersistentVolumeClaim in the job's namespace."""


class Checkpoint(Model, frozen=True):
    """Where the training keeps its checkpoints."""

    directory: Annotated[str, Field(max_length=1024, json_schema_extra=validation.DIRECTORY)] = "/checkpoints"
    """Absolute path in the training container, passed to the script as ELASTICJOB_CHECKPOINT_DIRECTORY.

    If volume is set, it is mounted there.
    """
    volume: Volume | None = None
    """Volume to mount at directory in every worker pod, such as persistentVolumeClaim: {claimName: checkpoints}.

    Written like a pod's volume, without its name: see kubectl explain pod.spec.volumes. All worker pods must see the
    same files. Omit it if the template mounts the directory itself.
    """
