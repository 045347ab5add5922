"""The typed ElasticJob, as it comes from the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from elasticjob_api.fields import Model, Time
from elasticjob_api.refused import refusals
from elasticjob_api.rendezvous import RendezvousBackend
from elasticjob_api.spec import Spec
from elasticjob_api.status import Status
from elasticjob_api.template import BELOW

GROUP = "elasticjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElasticJob"
PLURAL = "elasticjobs"
SINGULAR = "elasticjob"
SHORT_NAME = "ej"
MANAGER = f"{GROUP}/operator"
"""Value of `managedBy` for this operator."""


class InvalidJobError(ValueError):
    """An object from the API server that this operator cannot read.

    The message has one line for each invalid field: path, error, value.
    """


class Metadata(Model, frozen=True):
    """The part of metav1.ObjectMeta that the operator reads."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = {}  # noqa: RUF012 pydantic copies defaults
    annotations: dict[str, str] = {}  # noqa: RUF012 pydantic copies defaults


class ElasticJob(Model, frozen=True):
    """An elastic PyTorch training job."""

    metadata: Metadata
    spec: Spec
    status: Status = Status()

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> ElasticJob:
        """`body`: the object from the API server, with defaults. Unknown fields are ignored.

        Raises InvalidJobError, which a schema of the same version makes impossible.
        """
        if refused := list(refusals(body)):
            raise InvalidJobError("\n".join(refused))
        try:
            # Explicitly from a dict: kopf's bodies are read-only views.
            return cls.model_validate(
                {key: body[key] for key in ("metadata", "spec", "status") if body.get(key) is not None}
            )
        except pydantic.ValidationError as error:
            raise InvalidJobError("\n".join(_line(detail) for detail in error.errors(include_url=False))) from error

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def is_deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def replicas(self) -> int:
        """Desired number of worker pods, rounded down to an allowed size and to whole replicas. Below minReplicas is
        only a value that is not set."""
        return self.round_down(max(self.spec.workers.replicas, self.spec.workers.min_replicas or 1))

    def round_down(self, replicas: int) -> int:
        """The largest allowed size up to `replicas`, or the smallest allowed size if there is none."""
        allowed, unit = self.spec.workers.allowed_replicas, self.replica_size or 1
        if not allowed:
            return max(unit, replicas - replicas % unit)
        return max((size for size in allowed if size <= replicas), default=min(allowed))

    def next_size(self, replicas: int) -> int:
        """The smallest allowed size above `replicas`; 0: there is none."""
        if self.allowed_sizes:
            return min((size for size in self.allowed_sizes if size > replicas), default=0)
        unit = self.replica_size or 1
        return replicas + unit - replicas % unit

    @property
    def replica_size(self) -> int:
        """Number of worker pods of a replica; 0: there are none."""
        return self.spec.workers.replica_size or 0

    def with_replicas(self, replicas: int) -> ElasticJob:
        """The same job with another number of replicas."""
        if replicas == self.spec.workers.replicas:
            return self
        workers = self.spec.workers.model_copy(update={"replicas": replicas})
        return self.model_copy(update={"spec": self.spec.model_copy(update={"workers": workers})})

    @property
    def allowed_sizes(self) -> list[int]:
        """Sizes that training can run with. Empty: all from minReplicas to maxReplicas."""
        return sorted(self.spec.workers.allowed_replicas or ())

    @property
    def min_replicas(self) -> int:
        """Minimum number of worker pods that training needs. Default: replicas."""
        least, allowed = self.spec.workers.min_replicas, self.spec.workers.allowed_replicas
        least = self.replicas if least is None else least
        return min((size for size in allowed if size >= least), default=least) if allowed else least

    @property
    def max_replicas(self) -> int:
        """Maximum number of worker pods. Default: replicas."""
        most = self.spec.workers.max_replicas
        return self.replicas if most is None else most

    @property
    def has_plans(self) -> bool:
        """Whether its agents publish plans to etcd and read the desired members there. Those with torchrun's own
        rendezvous backends do neither."""
        return self.spec.rendezvous.backend is RendezvousBackend.ETCD_V3

    @property
    def etcd_members(self) -> int:
        """Number of members of the job's own etcd, if it has one."""
        etcd = self.spec.rendezvous.etcd
        return etcd.members if etcd is not None else 1

    @property
    def is_suspended(self) -> bool:
        """Whether spec.suspend is true."""
        return self.spec.suspend

    @property
    def is_managed_by_another(self) -> bool:
        return self.spec.managed_by not in ("", MANAGER)

    @property
    def training_container(self) -> str:
        """Name of the training container. Default: the template's first container; "" if there is none."""
        if self.spec.workers.container:
            return self.spec.workers.container
        containers = (self.spec.workers.template.get("spec") or {}).get("containers") or [{}]
        return str(containers[0].get("name", ""))


def _line(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    return f"{path}{error['msg']}" if error["type"] == BELOW else f"{path}: {error['msg']}; got {error['input']!r:.200}"
