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
from elasticjob_operator.planning.plan import plan
from elasticjob_operator.planning.refusal import refuse
from elasticjob_operator.planning.stories import tell_deeds

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
