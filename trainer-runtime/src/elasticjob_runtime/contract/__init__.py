"""The contract between operator and runtime: every name that both programs use.

Environment variables, etcd keys and their values, exit codes, the contract version. Both sides import this module, so
that neither has to hope that the other spells a name the same way. Standard library only; no I/O.

Keys of one run, all under `<prefix>/<run-id>/` (see docs/design/0002-rendezvous.md):

    spec                      wanted membership               operator, or the first agent from its flags
    members/<member>          leased: who is there            each agent, its own
    assigned-ranks/<attempt>/<member>  ranks of a plan        the planner, before the plan
    plan                      the current plan's head         the planner, one compare-and-swap
    stop                      that plan's workers may save    the planner, before a planned change, until the next plan
    failures/<round>/<member> first failure of a round       each agent, its own
    suspects/<round>/<suspect>/<by>  no heartbeat any more    each agent, of its neighbours
    training-progress         step and rate of the training   rank 0's agent, every 1 to 10 s
    outcome                   succeeded or failed, and why    the planner, once
    worker-last-joined        who registered last             each agent, as it registers
    worker-imports            what the script imports         rank 0's agent, when it has learned more
"""

from elasticjob_runtime.contract.environment import Env
from elasticjob_runtime.contract.exit_codes import ExitCode
from elasticjob_runtime.contract.fence import Fence
from elasticjob_runtime.contract.keys import DEFAULT_PREFIX, Keys
from elasticjob_runtime.contract.values import (
    AVAILABLE,
    CONSISTENT,
    CONTRACT_VERSION,
    ON_PARTITION,
    PARTITION_GRACE,
    PEER_LOST,
    FailureValue,
    ImportsValue,
    LastJoinedValue,
    MemberState,
    MemberValue,
    Neighbour,
    OutcomeState,
    OutcomeValue,
    PlanReason,
    PlanValue,
    ProgressValue,
    RankValue,
    SpecValue,
    StopValue,
    SuspicionValue,
    Value,
)

__all__ = [
    "AVAILABLE",
    "CONSISTENT",
    "CONTRACT_VERSION",
    "DEFAULT_C10D_PORT",
    "DEFAULT_ETCD_PORT",
    "DEFAULT_PREFIX",
    "ON_PARTITION",
    "PARTITION_GRACE",
    "PEER_LOST",
    "Env",
    "ExitCode",
    "FailureValue",
    "Fence",
    "ImportsValue",
    "Keys",
    "LastJoinedValue",
    "MemberState",
    "MemberValue",
    "Neighbour",
    "OutcomeState",
    "OutcomeValue",
    "PlanReason",
    "PlanValue",
    "ProgressValue",
    "RankValue",
    "SpecValue",
    "StopValue",
    "SuspicionValue",
    "Value",
]

DEFAULT_C10D_PORT = 29400
DEFAULT_ETCD_PORT = 2379
