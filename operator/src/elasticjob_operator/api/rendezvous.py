"""`spec.rendezvous` of an ElasticJob: how the workers find each other."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from pydantic import Field

from elasticjob_operator.api import rules
from elasticjob_operator.api.fields import Int64, Model, Quantities


class RendezvousBackend(str, enum.Enum):
    """How the agents of a job find each other."""

    ETCD_V3 = "etcd-v3"
    ETCD_V2 = "etcd-v2"
    C10D = "c10d"

    __str__ = str.__str__


class OnPartition(str, enum.Enum):
    """What becomes of workers that a cut network has separated from their etcd or from their control plane."""

    AVAILABLE = "Available"
    CONSISTENT = "Consistent"

    __str__ = str.__str__


class Resources(Model, frozen=True, json_schema_extra=rules.RESOURCES):
    """Compute resources of a container."""

    limits: Quantities | None = None
    """Most that the container may use: cpu, memory."""
    requests: Quantities | None = None
    """What the scheduler sets aside for the container: cpu, memory."""


class Toleration(Model, frozen=True):
    """A taint that the etcd's pod stands (core/v1 Toleration)."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Key of the taint. Left out, with operator Exists: all taints."""
    operator: Annotated[str, Field(max_length=16)] | None = None
    """Equal (the default) or Exists."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint, where operator is Equal."""
    effect: Annotated[str, Field(max_length=32)] | None = None
    """NoSchedule, PreferNoSchedule or NoExecute. Left out: all."""
    toleration_seconds: Int64 | None = None
    """With NoExecute: how long it is stood, s. Left out: for ever."""


class PullSecret(Model, frozen=True):
    """A Secret with credentials for a registry (core/v1 LocalObjectReference)."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret, in the job's namespace."""


_ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}


class ManagedEtcd(Model, frozen=True):
    """The etcd that the operator runs for a job."""

    image: Annotated[str, Field(max_length=1024, json_schema_extra=rules.IMAGE)] = ""
    """Image of etcd 3.5 or newer, with `etcd` on its PATH. Empty: the operator's default."""
    resources: Resources | None = None
    """Compute resources of the etcd container. Default: small requests, enough for a thousand workers."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32, json_schema_extra=_ATOMIC)] | None = None
    """Taints that the etcd's pod stands. Left out: the operator's default."""
    node_selector: (
        Annotated[
            dict[str, Annotated[str, Field(max_length=63)]],
            Field(max_length=32),
        ]
        | None
    ) = None
    """Labels of the nodes that the etcd's pod may go to. Left out: the operator's default."""
    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """PriorityClass of the etcd's pod. Empty: the operator's default."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=16, json_schema_extra=_ATOMIC)] | None = None
    """Secrets for the registry of the etcd's image, in the job's namespace. Left out: the operator's default."""


class Rendezvous(Model, frozen=True, json_schema_extra=rules.RENDEZVOUS):
    """How the workers find each other and agree who takes part."""

    backend: RendezvousBackend = RendezvousBackend.ETCD_V3
    """How the agents meet: etcd-v3, etcd-v2 or c10d.

    etcd-v3: the v3 API of an etcd; what all else here is made for. etcd-v2 and c10d are torchrun's own, without an
    operator's part: etcd-v2 needs an endpoint with the v2 API (etcd up to 3.5), c10d meets at worker 0, whose loss
    restarts all. Status then has no world size and progress.
    """
    endpoint: Annotated[str, Field(max_length=261, json_schema_extra=rules.ENDPOINT)] = ""
    """host:port of an etcd that you run. Empty: the operator's default endpoint, or an etcd of this job's own.

    With etcd-v2 it is required; with c10d it is worker 0's, and not given.
    """
    etcd: ManagedEtcd | None = None
    """Settings of the etcd that the operator runs for this job. Only without endpoint."""
    on_partition: OnPartition = OnPartition.AVAILABLE
    """What happens behind a network partition: Available or Consistent. May be changed at any time.

    Available: workers that are cut off train on for a bounded time, and workers on a silent node are replaced once that
    time has surely passed. Consistent: a group that loses etcd stops with its lease, and worker and etcd pods on a node
    that is only silent are not replaced until the node is back, deleted, or has the taint
    node.kubernetes.io/out-of-service.
    """
