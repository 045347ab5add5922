"""What was observed of a job, its worker pods and its Events. Pure.

It is read leniently, because the operator may be older or newer than this client.
"""

from elasticjob.state.events import EventState, event_states
from elasticjob.state.job import (
    Change,
    Condition,
    Failure,
    JobState,
    OptimizerSteps,
    Progress,
    job_state,
    training_container,
)
from elasticjob.state.progress import with_progress
from elasticjob.state.values import Json, Time, parse_time
from elasticjob.state.workers import WorkerState, in_index_order, in_rank_order, worker_state, worker_states

__all__ = [
    "Change",
    "Condition",
    "EventState",
    "Failure",
    "JobState",
    "Json",
    "OptimizerSteps",
    "Progress",
    "Time",
    "WorkerState",
    "event_states",
    "in_index_order",
    "in_rank_order",
    "job_state",
    "parse_time",
    "training_container",
    "with_progress",
    "worker_state",
    "worker_states",
]
