"""`spec.checkpoint` of an ElasticJob: where the training keeps its checkpoints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from elasticjob_operator.api import rules
from elasticjob_operator.api.fields import Model, Preserved


class Claim(Model, frozen=True):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=rules.CLAIM)]
    """Name of the claim. Its access mode must allow the nodes of all workers, such as ReadWriteMany."""
    read_only: bool | None = None
    """Whether to mount the volume read-only. Default: false."""


class Volume(Model, frozen=True, json_schema_extra=rules.VOLUME):
    """A volume of a pod, without its name. Other kinds than these are mounted in the template."""

    persistent_volume_claim: Claim | None = None
    """A PersistentVolumeClaim in the job's namespace."""
    nfs: Preserved | None = None
    """An NFS export (core/v1 NFSVolumeSource): server, path."""
    host_path: Preserved | None = None
    """A directory of the node (core/v1 HostPathVolumeSource), the same files on every node: path."""
    csi: Preserved | None = None
    """A volume of a CSI driver, made inline (core/v1 CSIVolumeSource)."""
    cephfs: Preserved | None = None
    """A CephFS mount (core/v1 CephFSVolumeSource)."""
    azure_file: Preserved | None = None
    """An Azure File share (core/v1 AzureFileVolumeSource)."""
    empty_dir: Preserved | None = None
    """A directory of the pod (core/v1 EmptyDirVolumeSource). Lost with the pod: for trials only."""


class Checkpoint(Model, frozen=True):
    """Where the training keeps its checkpoints."""

    directory: Annotated[str, Field(max_length=1024, json_schema_extra=rules.DIRECTORY)] = "/checkpoints"
    """Absolute path in the training container, given to the script as ELASTICJOB_CHECKPOINT_DIRECTORY.

    The volume, where there is one, is mounted there.
    """
    volume: Volume | None = None
    """Volume to mount at directory in every worker, such as persistentVolumeClaim: {claimName: checkpoints}.

    Written like a volume of a pod, without its name. All workers must see the same files. Leave it out where the
    template mounts the directory itself.
    """
