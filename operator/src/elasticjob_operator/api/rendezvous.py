"""`spec.rendezvous` of an ElasticJob: how the workers find each other."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from elasticjob_operator.api import rules
from elasticjob_operator.api.fields import Model, Quantities


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


class ManagedEtcd(Model, frozen=True):
    """The etcd that the operator runs for a job."""

    image: Annotated[str, Field(max_length=1024, json_schema_extra=rules.IMAGE)] = ""
    """Image of etcd 3.5 or newer, with `etcd` on its PATH. Empty: the operator's default."""
    resources: Resources | None = None
    """Compute resources of the etcd container. Default: small requests, enough for a thousand workers."""


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
    that is only silent are not replaced until the node is back, deleted, or has the taint node.kubernetes.io/out-of-service.
    """
