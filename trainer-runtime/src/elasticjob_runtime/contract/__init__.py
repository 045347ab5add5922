"""The contract between operator and runtime: every name that both programs use.

Environment variables, etcd keys and their values, exit codes, the contract version. Both sides import this package, so
neither has to repeat a name. Standard library only, no I/O.

The keys of one run, all under `<prefix>/<run-id>/` (see docs/design/0002-rendezvous.md):

    key                                contents                           written by
    agents-secret                      authenticates agents' messages     the first agent, once
    spec                               wanted membership                  the operator, else the first agent
    members/<member>                   a member's state, with its lease   that member's agent
    plan                               the current plan, without ranks    the planner, by compare-and-swap
    assigned-ranks/<attempt>/<member>  a member's rank in a plan          the planner, before the plan
    members-replicas/<member>          the replica of a member            the planner, with --replica-size
    members-unready                    who is not ready to train          the planner, if that lasts
    members-locations                  where in the network they are      the operator, if it orders the ranks
    stop                               time for processes to save         the planner, before a planned change
    failures/<round>/<member>          a member's first failure           that member's agent
    suspects/<round>/<suspect>/<by>    heartbeats stopped                 the agent of `by`, a neighbour
    outcome                            succeeded or failed, and why       the planner, once
    training-progress                  step and rate of the training      rank 0's agent, every 1 to 10 s
    training-transition                durations of the last transition   rank 0's agent, once a round
    training-stragglers                ranks that are slow                rank 0's agent, when that changes
    worker-evidence/<member>           what its processes do in a hang    that member's agent, for the others
    worker-hangs/<member>              what keeps it from taking a step   that member's agent, in a hang
    worker-imports                     what the script imports            rank 0's agent, when it learns more
    worker-preflight/<member>          what its machine's checks found    that member's agent, before it joins
    worker-pace/<member>               how long its steps take            that member's agent, every 1 to 60 s
    worker-last-joined                 the member that registered last    each agent, when it registers
"""

from elasticjob_runtime.commands import is_python
from elasticjob_runtime.contract.codec import Value
from elasticjob_runtime.contract.environment import Env
from elasticjob_runtime.contract.exit_codes import ExitCode
from elasticjob_runtime.contract.failures import first_failure, may_follow_from_another
from elasticjob_runtime.contract.fence import Fence
from elasticjob_runtime.contract.keys import DEFAULT_PREFIX, Keys
from elasticjob_runtime.contract.reports import (
    MAX_RESTARTS_EXCEEDED,
    MISMATCH,
    PEER_LOST,
    PREFLIGHT_FAILED,
    SCRIPT_FAILS,
    EvidenceValue,
    FailureValue,
    HangValue,
    ImportsValue,
    LocationsValue,
    OutcomeState,
    OutcomeValue,
    PaceValue,
    PreflightValue,
    ProgressValue,
    RankEvidenceValue,
    Straggler,
    StragglersValue,
    SuspicionValue,
    TransitionValue,
    UnreadyValue,
)
from elasticjob_runtime.contract.values import (
    AVAILABLE,
    CONSISTENT,
    CONTRACT_VERSION,
    LEASE_TTL,
    MAX_REPLICA_SIZE,
    NO_REPLICA,
    ON_PARTITION,
    PARTITION_GRACE,
    SECRET_BYTES,
    LastJoinedValue,
    MemberState,
    MemberValue,
    Neighbour,
    PlanReason,
    PlanValue,
    RankValue,
    ReplicaValue,
    SecretValue,
    SpecValue,
    StopValue,
)

__all__ = [
    "AVAILABLE", "CONSISTENT", "CONTRACT_VERSION", "DEFAULT_C10D_PORT", "DEFAULT_ETCD_PORT", "DEFAULT_PREFIX",
    "LEASE_TTL", "MAX_REPLICA_SIZE", "MAX_RESTARTS_EXCEEDED", "MISMATCH", "NO_REPLICA", "ON_PARTITION",
    "PARTITION_GRACE", "PEER_LOST", "PREFLIGHT_FAILED", "SCRIPT_FAILS", "SECRET_BYTES", "Env", "EvidenceValue",
    "ExitCode", "FailureValue", "Fence", "HangValue", "ImportsValue", "Keys", "LastJoinedValue", "LocationsValue",
    "MemberState", "MemberValue", "Neighbour", "OutcomeState", "OutcomeValue", "PaceValue", "PlanReason", "PlanValue",
    "PreflightValue", "ProgressValue", "RankEvidenceValue", "RankValue", "ReplicaValue", "SecretValue", "SpecValue",
    "StopValue", "Straggler", "StragglersValue", "SuspicionValue", "TransitionValue", "UnreadyValue", "Value",
    "first_failure", "is_python", "may_follow_from_another",
]  # fmt: skip

DEFAULT_C10D_PORT = 29400
DEFAULT_ETCD_PORT = 2379
