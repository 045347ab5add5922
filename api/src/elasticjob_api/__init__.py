"""The ElasticJob API, elasticjob.dev/v1alpha1: typed objects for the operator, and the source of the CRD."""

from elasticjob_api.conditions import (
    MESSAGES,
    REMEDY,
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    message,
    set_condition,
)
from elasticjob_api.history import Change, ChangeType, History, Phases, Sample
from elasticjob_api.job import API_VERSION, GROUP, KIND, PLURAL, VERSION, ElasticJob, InvalidJobError
from elasticjob_api.rendezvous import OnPartition, RendezvousBackend, RendezvousType
from elasticjob_api.spec import (
    Backoff,
    BeforeFirstStep,
    CleanPods,
    FailurePolicy,
    FailureRule,
    GangProvider,
    Inject,
    RuleAction,
    Spec,
)
from elasticjob_api.status import (
    FailingNode,
    Failure,
    FreeEnds,
    OptimizerSteps,
    Progress,
    RendezvousStatus,
    Restarts,
    Status,
)
from elasticjob_api.stored_history import StoredHistory
from elasticjob_api.summary import BLOCKING_REASONS, summary_of

__all__ = [
    "API_VERSION",
    "BLOCKING_REASONS",
    "GROUP",
    "KIND",
    "MESSAGES",
    "PLURAL",
    "REMEDY",
    "VERSION",
    "Backoff",
    "BeforeFirstStep",
    "Change",
    "ChangeType",
    "CleanPods",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "ElasticJob",
    "FailingNode",
    "Failure",
    "FailurePolicy",
    "FailureRule",
    "FreeEnds",
    "GangProvider",
    "History",
    "Inject",
    "InvalidJobError",
    "OnPartition",
    "OptimizerSteps",
    "Phases",
    "Progress",
    "Reason",
    "RendezvousBackend",
    "RendezvousStatus",
    "RendezvousType",
    "Restarts",
    "RuleAction",
    "Sample",
    "Spec",
    "Status",
    "StoredHistory",
    "message",
    "set_condition",
    "summary_of",
]
