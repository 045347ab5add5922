"""`spec.rendezvous` of an ElasticJob: how the worker pods find each other."""

from __future__ import annotations

import enum
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from elasticjob_api.crd import validation
from elasticjob_api.fields import ATOMIC, Int32, Int64, Model, Quantities, Quantity
from elasticjob_api.template import BELOW


class RendezvousType(enum.StrEnum):
    """Whose etcd the agents use."""

    AUTO = "Auto"
    DEDICATED = "Dedicated"
    EXTERNAL = "External"


class RendezvousBackend(enum.StrEnum):
    """Rendezvous backend of the agents."""

    ETCD_V3 = "etcd-v3"
    ETCD_V2 = "etcd-v2"
    C10D = "c10d"


class OnPartition(enum.StrEnum):
    """What happens to worker pods that a network partition separates from etcd or from the control plane."""

    AVAILABLE = "Available"
    CONSISTENT = "Consistent"


class Resources(Model, frozen=True, json_schema_extra=validation.RESOURCES):
    """Compute resources of a container."""

    limits: Quantities | None = None
    """Upper limit of what the container may use: cpu, memory."""
    requests: Quantities | None = None
    """What the scheduler reserves for the container: cpu, memory."""


class Toleration(Model, frozen=True):
    """A taint that the etcd pod tolerates (core/v1 Toleration)."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Key of the taint. Empty, with operator Exists: all taints."""
    operator: Annotated[str, Field(max_length=16)] | None = None
    """Equal (the default) or Exists."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint, if operator is Equal."""
    effect: Annotated[str, Field(max_length=32)] | None = None
    """NoSchedule, PreferNoSchedule or NoExecute. Empty: all effects."""
    toleration_seconds: Int64 | None = None
    """With NoExecute: seconds for which the taint is tolerated. Default: forever."""


class PullSecret(Model, frozen=True):
    """A Secret with credentials for an image registry (core/v1 LocalObjectReference)."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret, in the job's namespace."""


class EtcdStorage(Model, frozen=True):
    """The volume of each etcd member: a PersistentVolumeClaim that is deleted with the etcd."""

    size: Quantity = "1Gi"
    """Size of the volume, such as 1Gi."""
    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    """StorageClass of the volume. Default: the cluster's default class."""


class ManagedEtcd(Model, frozen=True, json_schema_extra=validation.MANAGED_ETCD):
    """The etcd that the operator runs for a job."""

    members: Annotated[Int32, Field(json_schema_extra=validation.MEMBERS)] = 1
    """Number of members: 1 or 3. With 3, the loss of one does not interrupt the rendezvous; they need storage."""
    storage: EtcdStorage | None = None
    """A volume for each member. Required with 3 members; a single member needs none."""

    image: Annotated[str, Field(max_length=1024, json_schema_extra=validation.IMAGE)] = ""
    """Image with etcd 3.5 or newer on its PATH. Empty: the operator's default."""
    resources: Resources | None = None
    """Compute resources of the etcd container. Default: small requests, enough for a thousand workers."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32, json_schema_extra=ATOMIC)] | None = None
    """Tolerations of the etcd pod. Default: set by the operator."""
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)] | None = None
    """Labels that the etcd pod's node must have. Default: set by the operator."""
    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """PriorityClass of the etcd pod. Empty: the operator's default."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None = None
    """Secrets in the job's namespace for pulling the etcd image. Default: set by the operator."""


class Rendezvous(Model, frozen=True, json_schema_extra=validation.RENDEZVOUS):
    """How the worker pods find each other and agree on the members of a round."""

    type: RendezvousType = RendezvousType.AUTO
    """Whose etcd the worker pods use: Auto, Dedicated or External.

    Auto: the operator's default endpoint, or an etcd of this job if there is none. Dedicated: an etcd of this job,
    which the operator runs, with the settings in etcd. External: one that you run, at endpoint.
    """
    backend: RendezvousBackend = RendezvousBackend.ETCD_V3
    """Rendezvous backend: etcd-v3, etcd-v2 or c10d.

    etcd-v3 uses the v3 API of etcd and supports all features. etcd-v2 and c10d are torchrun's own backends, which the
    operator does not take part in: status then has neither world size nor progress. etcd-v2 needs type External and an
    endpoint with the v2 API (etcd up to 3.5). c10d uses a store in worker pod 0, whose loss restarts all worker pods,
    and no etcd.
    """
    endpoint: Annotated[str, Field(max_length=269, json_schema_extra=validation.ENDPOINT)] = ""
    """Address of an etcd that you run: https://host:port, or host:port if it does not use TLS. Required with type
    External, and for that type only."""
    secret_name: Annotated[str, Field(max_length=253, json_schema_extra=validation.SECRET_NAME)] = ""
    """Secret in the job's namespace with what the etcd at endpoint requires; needs https://.

    All keys are optional: ca.crt (the CA of etcd's certificate; default: the system's CAs), tls.crt and tls.key (a
    client certificate without a common name), username and password (a user with the permission readwrite on the prefix
    /elasticjob/). Worker pods mount it, and the operator must be allowed to read it.
    """
    etcd: ManagedEtcd | None = None
    """Settings of the etcd that the operator runs for this job. For type Dedicated only."""
    on_partition: OnPartition = OnPartition.AVAILABLE
    """What happens during a network partition: Available or Consistent. Can be changed at any time.

    Available: worker pods that are cut off continue to train for a bounded time, and worker pods on an unreachable node
    are replaced after that time. Consistent: a group that loses etcd stops when its lease expires, and worker and etcd
    pods on an unreachable node are not replaced until the node is back, is deleted, or has the taint
    node.kubernetes.io/out-of-service.
    """

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        """A stored job from before there were types must not be moved to another etcd. Raises PydanticCustomError."""
        if self.type is RendezvousType.EXTERNAL and not self.endpoint:
            raise PydanticCustomError(BELOW, ".endpoint is missing: type External needs host:port of an etcd")
        if self.endpoint and self.type is not RendezvousType.EXTERNAL:
            raise PydanticCustomError(BELOW, f".endpoint is for type External, not {self.type}: set type: External")
        if self.etcd is not None and self.type is not RendezvousType.DEDICATED:
            raise PydanticCustomError(BELOW, f".etcd is for type Dedicated, not {self.type}: set type: Dedicated")
        return self
