"""What to do about a job: `plan(job, world, settings, now) -> Plan`, pure.

Policies decide; this turns their words into actions and status.
"""

from elasticjob_operator.planning.actions import (
    Action,
    ClearRun,
    CreateObject,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    DryRunCreate,
    EvictMember,
    JobEvent,
    PatchObject,
    Plan,
    PublishSpec,
    ReadHeartbeat,
    Target,
)
from elasticjob_operator.planning.events import events_of_actions
from elasticjob_operator.planning.invalid_spec import refuse
from elasticjob_operator.planning.plan import plan

__all__ = [
    "Action",
    "ClearRun",
    "CreateObject",
    "CreatePod",
    "DeleteJob",
    "DeleteObject",
    "DeletePod",
    "DryRunCreate",
    "EvictMember",
    "JobEvent",
    "PatchObject",
    "Plan",
    "PublishSpec",
    "ReadHeartbeat",
    "Target",
    "events_of_actions",
    "plan",
    "refuse",
]
