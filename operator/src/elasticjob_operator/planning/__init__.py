"""What to do about a job: `plan(job, world, settings, now) -> Plan`, pure.

Policies decide; this turns their words into actions and status.
"""

from elasticjob_operator.planning.actions import (
    Action,
    AskServer,
    ClearRun,
    CreateObject,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    EvictMember,
    PatchObject,
    Plan,
    PublishSpec,
    ReadHeartbeat,
    Story,
    Target,
)
from elasticjob_operator.planning.events import tell_deeds
from elasticjob_operator.planning.invalid_spec import refuse
from elasticjob_operator.planning.plan import plan

__all__ = [
    "Action",
    "AskServer",
    "ClearRun",
    "CreateObject",
    "CreatePod",
    "DeleteJob",
    "DeleteObject",
    "DeletePod",
    "EvictMember",
    "PatchObject",
    "Plan",
    "PublishSpec",
    "ReadHeartbeat",
    "Story",
    "Target",
    "plan",
    "refuse",
    "tell_deeds",
]
