"""The actions of a plan. Each one has a reason; executing one twice does no harm."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob_api import Reason, Status
from elasticjob_runtime.contract import LocationsValue, SpecValue

from elasticjob_operator.names import NamespacedName
from elasticjob_operator.resources.pods import numbered
from elasticjob_operator.state import Kind


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    reason: str
    """Human-readable, for logs and the Event of a deletion."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CreatePod(Action):
    """The API server rejects a second pod of the same name."""

    job: str
    like: Mapping[str, Any]
    """A worker pod that differs in no more than index and name: a plan may create thousands, and nothing else runs
    while it makes them."""
    index: int
    name: str

    @property
    def body(self) -> dict[str, Any]:
        return numbered(self.like, self.job, self.index, self.name)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeletePod(Action):
    name: str
    uid: str
    """Only this pod, never a later one of the same name."""
    force: bool = False
    """Without waiting for its kubelet."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PatchPod(Action):
    name: str
    uid: str
    patch: Mapping[str, Any]
    """JSON merge patch."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CreateObject(Action):
    kind: Kind
    body: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PatchObject(Action):
    """Restore an object that someone changed, or write to a Workload."""

    kind: Kind
    name: str
    uid: str
    patch: Mapping[str, Any]
    """JSON merge patch."""
    subresource: str = ""
    """status, or empty."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeleteObject(Action):
    kind: Kind
    name: str
    uid: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CreateCertificates(Action):
    """Make the certificates of the job's own etcd and create the Secret `body` with them. Done before any other create,
    and nothing else is created if it fails. A Secret of that name is not touched: it was created by an earlier try."""

    body: Mapping[str, Any]
    dns_names: tuple[str, ...]
    """Names of the etcd's server."""
    peer_names: tuple[str, ...] = ()
    """Names by which its members know each other; empty: it has one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeleteCertificates(Action):
    """Delete the Secret with the certificates of the job's own etcd, by name and before the etcd: once the etcd is
    gone, nothing tells that name any more. Or the Secret of a run with a user in the shared etcd."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CreateRunUser(Action):
    """Create the user of a run in the shared etcd, and the Secret `body` with its password. Does nothing where both
    exist. Done before any other create, and nothing else is created if it fails."""

    body: Mapping[str, Any]
    user: str
    run_id: str
    """The user may read and write the keys of this run."""
    credentials: NamespacedName
    """The Secret with the operator's credentials for that etcd."""
    earlier_user: str = ""
    """Of the run before, to be removed; empty: this is the first one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeleteJob(Action):
    """Delete the job, and with it everything that it owns."""

    name: str
    uid: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DryRunCreate(Action):
    """Ask the API server whether it would create this pod. The response is part of the next observed state."""

    template_hash: str
    body: Mapping[str, Any]
    image_volume: bool = False
    """The pod has the runtime as an image volume."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReadHeartbeat(Action):
    """Read a node and its kubelet's Lease, in case the kubelet is alive after all. The result is part of the next
    observed state."""

    node: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReadEvents(Action):
    """Read what the Events of an object say. The answer is part of the next observed state."""

    kind: str
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishSpec(Action):
    """Write the membership hint for the agents."""

    spec: SpecValue


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishLocations(Action):
    """Write where in the network the worker pods are, for the order of their ranks."""

    locations: LocationsValue


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvictMember(Action):
    """Delete the member key of an agent that is certainly dead, so that the others do not wait for its lease to
    expire."""

    member: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClearRun(Action):
    """Delete the user of the run, if it has one, and all its keys."""


RendezvousAction = PublishSpec | PublishLocations | EvictMember | ClearRun
"""Writes to the rendezvous of a job; all others are to the API server."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The rendezvous to follow."""

    endpoint: str
    run_id: str
    tls: bool = False
    """Connect with the operator's certificate: only to a job's own etcd, never to an endpoint that a user names."""
    secret: NamespacedName | None = None
    """The Secret with the credentials for this endpoint. None: the operator has none."""
    user: str = ""
    """The user of the run in the shared etcd, to be removed with its keys. Empty: it has none."""
    ready_store_pod: str = ""
    """Which pods of the job's own etcd are ready: their UIDs, or, of several members, whether any is. A change triggers
    an immediate reconnect."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobEvent:
    """An Event, with the reasons and messages of api.conditions."""

    reason: Reason
    message: str
    warning: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    status: Status
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    """Recorded once the status is written."""
    target: Target | None = None
    """None: stop following the rendezvous."""
    requeue_at: datetime.datetime | None = None
    """The earliest time at which the plan changes even if nothing else does. None: never."""
    stalls_at: datetime.datetime | None = None
    """When it changes unless training goes on until then: a report of progress makes this later, without a plan."""


def earliest(times: Iterable[datetime.datetime | None]) -> datetime.datetime | None:
    return min((time for time in times if time is not None), default=None)
