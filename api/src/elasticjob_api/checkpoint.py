"""`spec.checkpoint` of an ElasticJob: where the training keeps its checkpoints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from elasticjob_api.crd import validation
from elasticjob_api.fields import Model, Preserved


class Claim(Model, frozen=True):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=validation.CLAIM)]
    """Name of the claim. Its access mode must let the nodes of all worker pods mount it, such as ReadWriteMany."""
    read_only: bool | None = None
    """Whether to mount the volume read-only. Default: false."""


class Volume(Model, frozen=True, json_schema_extra=validation.VOLUME):
    """A volume source, like a pod's volume without its name. Mount other kinds of volumes in the template."""

    persistent_volume_claim: Claim | None = None
    """A PersistentVolumeClaim in the job's namespace."""
    nfs: Preserved | None = None
    """An NFS export (core/v1 NFSVolumeSource): server, path."""
    host_path: Preserved | None = None
    """A directory of the node (core/v1 HostPathVolumeSource) that holds the same files on every node: path."""
    csi: Preserved | None = None
    """An inline volume of a CSI driver (core/v1 CSIVolumeSource)."""
    cephfs: Preserved | None = None
    """A CephFS mount (core/v1 CephFSVolumeSource)."""
    azure_file: Preserved | None = None
    """An Azure File share (core/v1 AzureFileVolumeSource)."""
    empty_dir: Preserved | None = None
    """An empty directory (core/v1 EmptyDirVolumeSource). Deleted with the pod, so for trials only."""


class Checkpoint(Model, frozen=True):
    """Where the training keeps its checkpoints."""

    directory: Annotated[str, Field(max_length=1024, json_schema_extra=validation.DIRECTORY)] = "/checkpoints"
    """Absolute path in the training container, passed to the script as ELASTICJOB_CHECKPOINT_DIRECTORY.

    If volume is set, it is mounted there.
    """
    volume: Volume | None = None
    """Volume to mount at directory in every worker pod, such as persistentVolumeClaim: {claimName: checkpoints}.

    Written like a pod's volume, without its name. All worker pods must see the same files. Omit it if the template
    mounts the directory itself.
    """
