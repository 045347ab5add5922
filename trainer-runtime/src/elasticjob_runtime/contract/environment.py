"""Names of the environment variables that operator, agent and worker processes share."""

from __future__ import annotations


class Env:
    """Names of environment variables."""

    # Flags of torchrun and elasticrun.
    NNODES = "PET_NNODES"
    """`--nnodes`: number of members, or `MIN:MAX`. In an ElasticJob, minReplicas and maxReplicas."""
    NPROC_PER_NODE = "PET_NPROC_PER_NODE"
    """`--nproc-per-node`: worker processes of each agent. In an ElasticJob, procsPerWorker."""
    RDZV_ID = "PET_RDZV_ID"
    """`--rdzv-id`: the run ID, shared by all members of a run."""
    RDZV_BACKEND = "PET_RDZV_BACKEND"
    """`--rdzv-backend`: `etcd-v3`, or one of torchrun's own backends."""
    RDZV_ENDPOINT = "PET_RDZV_ENDPOINT"
    """`--rdzv-endpoint`: host:port of etcd, or several, separated by commas."""
    RDZV_CONF = "PET_RDZV_CONF"
    """`--rdzv-conf`: further settings of the rendezvous, as `key=value,...`."""
    REPLICA_SIZE = "PET_REPLICA_SIZE"
    """`--replica-size`: members of each replica. In an ElasticJob, workers.replicaSize. Set only where the job has
    it."""
    MAX_RESTARTS = "PET_MAX_RESTARTS"
    """`--max-restarts`: restarts because of failures before the job fails. In an ElasticJob,
    failurePolicy.maxRestarts."""
    SHUTDOWN_TIMEOUT = "PET_SHUTDOWN_TIMEOUT"
    """`--shutdown-timeout`: seconds from SIGTERM to SIGKILL. In an ElasticJob, gracefulShutdownSeconds."""

    # Set by the operator on the training container.
    JOB_NAME = "ELASTICJOB_NAME"
    """Name of the ElasticJob."""
    JOB_NAMESPACE = "ELASTICJOB_NAMESPACE"
    """Namespace of the ElasticJob."""
    JOB_UID = "ELASTICJOB_UID"
    """UID of the ElasticJob, the same for all its runs; the rendezvous id is `<uid>-<run>`."""
    RUN = "ELASTICJOB_RUN"
    """Number of the job's run: 1, 2, 3 ... Without an operator it is unset, and the agents use the Unix time of the
    run's first plan."""
    MEMBER_ID = "ELASTICJOB_MEMBER_ID"
    """Name of this member: the pod's name. Default: the host name and a random part."""
    ADDRESS = "ELASTICJOB_ADDRESS"
    """IP address at which other members reach this one: the pod's IP. Default: detected."""
    CHECKPOINT_DIRECTORY = "ELASTICJOB_CHECKPOINT_DIRECTORY"
    """Folder for checkpoints: spec.checkpoint.directory."""
    TERMINATION_LOG = "ELASTICJOB_TERMINATION_LOG"
    """File for the pod's termination message: the job's first failure. Created if missing. Default:
    /dev/termination-log, if it exists."""

    RUNTIME = "ELASTICJOB_RUNTIME"
    """Where the injected runtime comes from, for the first line of the container's log. Unset: none is injected."""

    METRICS_PORT = "ELASTICJOB_METRICS_PORT"
    """TCP port of the agent's metrics; unset or 0: none."""

    # Set by the agent for its worker processes.
    AGENT_SOCKET = "ELASTICJOB_AGENT_SOCKET"
    """Unix socket (SOCK_SEQPACKET) on which a worker process reports to its agent."""
    ROUND = "ELASTICJOB_ROUND"
    """Number of the round, which grows with every restart and resize."""
    FENCE = "ELASTICJOB_FENCE"
    """Fencing token of a worker group: `<run>.<store generation>.<round>`, ordered (see `Fence`). Shared resources such
    as a checkpoint directory refuse a writer whose token is smaller than one they have seen."""

    STEPS_FOLDER = "ELASTICJOB_STEPS_FOLDER"
    """Under torchrun with our rendezvous: where worker processes count their optimizer steps. Set it to an empty string
    for torchrun, and nothing is counted."""

    REPLICA = "ELASTICJOB_REPLICA"
    """With `--replica-size`: the number of this process's replica, which it keeps. RANK, WORLD_SIZE and MASTER_ADDR are
    those of the replica's own world then. Unset: all worker processes are one world."""

    LOCAL_RANK = "ELASTICJOB_LOCAL_RANK"
    """Number of this worker process among those of its agent. LOCAL_RANK is 0 in all of them with
    `--virtual-local-rank`."""

    IN_PLACE = "ELASTICJOB_IN_PLACE"
    """1: the agent lets worker processes continue under another plan (see training.session). Unset: it restarts
    them."""

    TRAINER_SERVER_URL = "KUBEFLOW_TRAINER_SERVER_URL"
    """URL to which a script may report its progress by the protocol of Kubeflow Trainer; Hugging Face's Trainer does so
    by itself. Not set if the pod sets it already."""
    TRAINER_SERVER_TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 a name
    """File with the token for that URL."""

    # spec.workers.preflight, as flags of elasticrun. Set only where the job has it.
    PREFLIGHT = "PET_PREFLIGHT"
    """Names of checks, separated by commas."""
    PREFLIGHT_COMMAND = "PET_PREFLIGHT_COMMAND"
    """A command line."""
    PREFLIGHT_TIMEOUT = "PET_PREFLIGHT_TIMEOUT"
    """Seconds."""

    # Set by you in the pod template.
    MEMORY_SNAPSHOTS = "ELASTICJOB_MEMORY_SNAPSHOTS"
    """0: worker processes leave no snapshots of their state in memory."""
    IN_PLACE_NCCL = "ELASTICJOB_IN_PLACE_NCCL"
    """1: sessions also continue in place with NCCL, and train in replicas. Tested on one
    GPU only, which all processes shared. Unset: with NCCL, worker processes restart at every change, and replicas end
    with an error."""
    COPY_RATE = "ELASTICJOB_COPY_RATE"
    """MiB/s at which an agent copies the snapshots of sharded state to its neighbour, at most. 0: it copies none."""

    SET_BY_OPERATOR = (
        NNODES, NPROC_PER_NODE, RDZV_ID, RDZV_BACKEND, RDZV_ENDPOINT, MAX_RESTARTS, SHUTDOWN_TIMEOUT,
        JOB_NAME, JOB_NAMESPACE, JOB_UID, RUN, MEMBER_ID, ADDRESS, CHECKPOINT_DIRECTORY,
    )  # fmt: skip
    """On the training container. RDZV_CONF is not reserved: the operator's value (certificates, c10d's host) is
    prepended to the user's."""
    SET_BY_AGENT = (
        "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        AGENT_SOCKET, LOCAL_RANK, REPLICA, ROUND, FENCE, IN_PLACE,
    )  # fmt: skip
    """For its worker processes, overriding other values."""
    RESERVED = (*SET_BY_OPERATOR, RUNTIME, *SET_BY_AGENT)
    """Variables that a pod template must not set: they would be overridden, or break the job. All others that torchrun,
    elasticrun and torch read are allowed."""
