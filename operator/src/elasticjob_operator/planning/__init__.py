"""What to do about a job: `plan(job, state, settings, now) -> Plan`, a pure function.

The policies decide; this package turns their decisions into actions and status.
"""

from elasticjob_operator.planning.actions import (
    Action,
    ClearRun,
    CreateCertificates,
    CreateObject,
    CreatePod,
    CreateRunUser,
    DeleteCertificates,
    DeleteJob,
    DeleteObject,
    DeletePod,
    DryRunCreate,
    EvictMember,
    JobEvent,
    PatchObject,
    PatchPod,
    Plan,
    PublishLocations,
    PublishSpec,
    ReadEvents,
    ReadHeartbeat,
    RendezvousAction,
    Target,
)
from elasticjob_operator.planning.events import events_of_actions
from elasticjob_operator.planning.plan import plan, plan_for_invalid_spec

__all__ = [
    "Action",
    "ClearRun",
    "CreateCertificates",
    "CreateObject",
    "CreatePod",
    "CreateRunUser",
    "DeleteCertificates",
    "DeleteJob",
    "DeleteObject",
    "DeletePod",
    "DryRunCreate",
    "EvictMember",
    "JobEvent",
    "PatchObject",
    "PatchPod",
    "Plan",
    "PublishLocations",
    "PublishSpec",
    "ReadEvents",
    "ReadHeartbeat",
    "RendezvousAction",
    "Target",
    "events_of_actions",
    "plan",
    "plan_for_invalid_spec",
]
