"""Names of the environment variables that operator, agent and workers share."""

from __future__ import annotations


class Env:
    """Names of environment variables."""

    # What torchrun and elasticrun both read as their flags.
    NNODES = "PET_NNODES"
    NPROC_PER_NODE = "PET_NPROC_PER_NODE"
    RDZV_ID = "PET_RDZV_ID"
    RDZV_BACKEND = "PET_RDZV_BACKEND"
    RDZV_ENDPOINT = "PET_RDZV_ENDPOINT"
    RDZV_CONF = "PET_RDZV_CONF"
    MAX_RESTARTS = "PET_MAX_RESTARTS"
    SHUTDOWN_TIMEOUT = "PET_SHUTDOWN_TIMEOUT"

    # Our own, set by the operator on the training container.
    JOB_NAME = "ELASTICJOB_NAME"
    JOB_NAMESPACE = "ELASTICJOB_NAMESPACE"
    JOB_UID = "ELASTICJOB_UID"
    """uid of the job: the same for all its runs, while the rendezvous id is `<uid>-<run>`."""
    RUN = "ELASTICJOB_RUN"
    """Number of the job's run, an integer that only grows; the first is 1. Not set: no operator; then the agents take
    the Unix time of the run's first plan."""
    MEMBER_ID = "ELASTICJOB_MEMBER_ID"
    """Name of this member: the pod's name. A host name and a random part where it is not set."""
    ADDRESS = "ELASTICJOB_ADDRESS"
    """IP address at which the other members reach this one: the pod's IP. Found out where it is not set."""
    CREDENTIALS_PATH = "ELASTICJOB_CREDENTIALS_PATH"
    CHECKPOINT_DIRECTORY = "ELASTICJOB_CHECKPOINT_DIRECTORY"
    TERMINATION_LOG = "ELASTICJOB_TERMINATION_LOG"
    """File that gets the first failure of the job, for the pod's termination message. Made
    where it is missing. Default: /dev/termination-log where it is."""

    METRICS_PORT = "ELASTICJOB_METRICS_PORT"
    """TCP port at which the agent shows its metrics; not set or 0: none."""

    # Our own, set by the agent for its workers.
    AGENT_SOCKET = "ELASTICJOB_AGENT_SOCKET"
    """Unix socket (SOCK_SEQPACKET) on which a worker reports to its agent."""
    ROUND = "ELASTICJOB_ROUND"
    FENCE = "ELASTICJOB_FENCE"
    """Fencing token of a worker group: `<run>.<store generation>.<round>`, three integers, ordered (see `Fence`). What
    is shared with other groups, a checkpoint folder above all, refuses a writer whose token is smaller than one it has
    seen."""

    SET_BY_OPERATOR = (
        NNODES, NPROC_PER_NODE, RDZV_ID, RDZV_BACKEND, RDZV_ENDPOINT, MAX_RESTARTS, SHUTDOWN_TIMEOUT,
        JOB_NAME, JOB_NAMESPACE, JOB_UID, RUN, MEMBER_ID, ADDRESS, CHECKPOINT_DIRECTORY,
    )  # fmt: skip
    """On the training container. Not RDZV_CONF: what it sets for c10d is put before what the user says."""
    SET_BY_AGENT = (
        "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        AGENT_SOCKET, ROUND, FENCE,
    )  # fmt: skip
    """For its workers, whatever was there before."""
    RESERVED = (*SET_BY_OPERATOR, *SET_BY_AGENT)
    """What users may not set in a pod template: it would be overridden, or break the job. By name: whatever else
    torchrun, elasticrun and torch read can be set there."""
