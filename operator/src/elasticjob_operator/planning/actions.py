"""What a plan can ask for. Every action says why; executing one twice does no harm."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from elasticjob_runtime.contract import SpecValue

from elasticjob_operator.api import Reason, Status
from elasticjob_operator.state import Kind


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CreatePod(Action):
    """By name: the API server refuses a twin."""

    body: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeletePod(Action):
    name: str
    uid: str
    """Only this very pod, never a successor of the same name."""
    force: bool = False
    """Without waiting for its kubelet, which is gone."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CreateObject(Action):
    kind: Kind
    body: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PatchObject(Action):
    """Put right an object of ours that somebody changed."""

    kind: Kind
    name: str
    uid: str
    patch: Mapping[str, Any]
    """JSON merge patch."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeleteObject(Action):
    kind: Kind
    name: str
    uid: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeleteJob(Action):
    """The job itself, and by owner references all it has."""

    name: str
    uid: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DryRunCreate(Action):
    """Dry-run create: would the API server take this pod? The answer is part of the next world."""

    template_hash: str
    body: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReadHeartbeat(Action):
    """Read a node and its kubelet's Lease: does it answer after all? The answer is part of the next world."""

    node: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PublishSpec(Action):
    """Write the membership hint."""

    spec: SpecValue


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EvictMember(Action):
    """Delete the member key of an agent that is certainly dead, so that the others need not wait for its lease to
    end."""

    member: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClearRun(Action):
    """Delete all keys of the run."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The rendezvous to follow."""

    endpoint: str
    run_id: str
    ready_store_pod: str = ""
    """Changes when another try is worth more than waiting: the job's own etcd came up."""


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
    stories: tuple[JobEvent, ...] = ()
    """Told once the status is written."""
    target: Target | None = None
    """None: the rendezvous is of no interest any more."""
    requeue_at: datetime.datetime | None = None
    """The earliest time at which time alone changes the plan. None: none."""
