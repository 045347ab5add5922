"""Every condition type, every reason and its sentence: the words that conditions, Events, logs and metrics share."""

from __future__ import annotations

import enum


class ConditionType(str, enum.Enum):
    """Aspects of a job's state, in the order in which a job's life meets them."""

    ACCEPTED = "Accepted"
    """The spec can be carried out. False: it cannot, and the message says why."""
    RENDEZVOUS_READY = "RendezvousReady"
    """The etcd through which the workers meet answers."""
    RUNNING = "Running"
    """A worker group trains."""
    STALLED = "Stalled"
    """Workers run, but report no further steps."""
    RESTARTING = "Restarting"
    """Training has started before, stands still now, and will go on."""
    RESIZING = "Resizing"
    """The number of workers is on its way to another one that is wanted."""
    DEGRADED = "Degraded"
    """Trains, with fewer workers than wanted."""
    SUSPENDED = "Suspended"
    """The job rests at its owner's wish; it holds no pods."""
    SUCCEEDED = "Succeeded"
    """All processes of the worker group ended well. Terminal."""
    FAILED = "Failed"
    """The job will not go on. Terminal."""

    __str__ = str.__str__


class Reason(str, enum.Enum):
    """Why a condition has its status, or what an Event tells."""

    # Accepted
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    POD_REFUSED = "PodRefused"
    """The API server refused a pod for a cause outside the template: quota, admission."""
    ENDPOINT_NOT_ALLOWED = "EndpointNotAllowed"
    """The job names an etcd that those who run the operator have not allowed. Also of RendezvousReady."""
    OBJECT_REFUSED = "ObjectRefused"
    """It refused a Service, the etcd or the autoscaler of the job."""

    # RendezvousReady
    ETCD_READY = "EtcdReady"
    ETCD_STARTING = "EtcdStarting"
    ETCD_UNREACHABLE = "EtcdUnreachable"
    ETCD_DENIED = "EtcdDenied"
    VALUE_NOT_UNDERSTOOD = "ValueNotUnderstood"
    """It answers, and a value of the run there is not what it must be."""
    STORE_READY = "StoreReady"
    STORE_STARTING = "StoreStarting"
    """These two: the store of c10d, which worker 0 hosts."""

    # Running
    TRAINING = "Training"
    WAITING_FOR_RENDEZVOUS = "WaitingForRendezvous"
    WAITING_FOR_WORKERS = "WaitingForWorkers"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    UNSCHEDULABLE = "Unschedulable"
    """These three: a worker does not start; the message has the kubelet's or the scheduler's words."""
    NODE_SILENT = "NodeSilent"
    """A worker or the etcd is on a node that does not answer, and spec.rendezvous.onPartition keeps it there."""
    NODES_UNHEALTHY = "NodesUnhealthy"
    """So many nodes are not ready that nothing on them is given up."""
    OUTCOME_UNKNOWN = "OutcomeUnknown"
    """No worker pod is left of a job that has trained: etcd is asked first whether it has ended."""
    RENDEZVOUS_LOST = "RendezvousLost"
    """etcd does not answer, and a worker of the last round is gone: nothing can be agreed on until it is back."""
    FINISHED = "Finished"

    # Stalled
    NO_PROGRESS = "NoProgress"
    PROGRESSING = "Progressing"

    # Restarting
    WORKER_FAILED = "WorkerFailed"
    WORKER_LOST = "WorkerLost"
    RESUMED = "Resumed"

    # Resizing
    SCALING_UP = "ScalingUp"
    SCALE_UP_DELAYED = "ScaleUpDelayed"
    SCALING_DOWN = "ScalingDown"
    RESIZED = "Resized"

    # Degraded
    WORKERS_MISSING = "WorkersMissing"
    COMPLETE = "Complete"
    NOT_TRAINING = "NotTraining"
    RESIZING = "Resizing"

    # Suspended; the first also of Running and the others meanwhile
    SUSPENDED = "Suspended"
    SUSPENDING = "Suspending"
    JOB_RESUMED = "JobResumed"

    # Succeeded, Failed
    WORKERS_SUCCEEDED = "WorkersSucceeded"
    WORKERS_FAILED = "WorkersFailed"
    """The agents gave up, for another cause than the restart budget."""
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
    FAILED_BY_RULE = "FailedByRule"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
    NOT_FINISHED = "NotFinished"

    # Events only
    WORKER_CREATED = "WorkerCreated"
    WORKER_DELETED = "WorkerDeleted"
    ETCD_CREATED = "EtcdCreated"

    __str__ = str.__str__


MESSAGES: dict[Reason, str] = {
    Reason.ACCEPTED: "The job is accepted.",
    Reason.INVALID_SPEC: "This operator cannot carry out the spec: {error}",
    Reason.INVALID_POD_TEMPLATE: "The API server refuses pods of spec.workers.template: {error}",
    Reason.POD_REFUSED: "The API server refuses further worker pods, tried again: {error}",
    Reason.ENDPOINT_NOT_ALLOWED: "spec.rendezvous.endpoint {endpoint} is not among the endpoints that this operator "
    "allows: name another "
    "one or none, or ask those who run the operator to add it to rendezvous.allowedEndpoints.",
    Reason.OBJECT_REFUSED: "The API server refuses what the job needs beside its pods, tried again: {error}",
    Reason.ETCD_READY: "etcd answers at {endpoint}.",
    Reason.ETCD_STARTING: "Waiting for the job's etcd at {endpoint} to start.",
    Reason.ETCD_UNREACHABLE: "etcd does not answer at {endpoint}: {error}",
    Reason.ETCD_DENIED: "etcd at {endpoint} refuses the operator: {error}",
    Reason.VALUE_NOT_UNDERSTOOD: "etcd at {endpoint} has a value of this run that is not what it must be, and is "
    "taken as missing: {error}",
    Reason.STORE_READY: "Worker 0 runs, which hosts the store at {endpoint}.",
    Reason.STORE_STARTING: "Waiting for worker 0, which hosts the store at {endpoint}.",
    Reason.TRAINING: "In round {round}, {world_size} processes train; {ready} of {wanted} workers are ready.",
    Reason.WAITING_FOR_RENDEZVOUS: "{ready} of {wanted} workers are ready, and have not agreed yet who takes part: "
    "their logs say more.",
    Reason.WAITING_FOR_WORKERS: "{ready} of {wanted} workers are ready; training needs at least {min}.",
    Reason.IMAGE_UNAVAILABLE: "The image of {worker}, made at {since}, cannot be had: {detail}",
    Reason.CONTAINER_CONFIG_ERROR: "{worker}, made at {since}, cannot be started: {detail}",
    Reason.UNSCHEDULABLE: "No node takes {worker}, made at {since}: {detail}",
    Reason.NODE_SILENT: "Node {node} has not answered since {since}. With spec.rendezvous.onPartition Consistent, its "
    "pods are not "
    "replaced until it is back. If it is certainly off, delete it, or run: "
    "kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    Reason.NODES_UNHEALTHY: "{count} of {total} nodes are not ready: too many to replace their pods, because the "
    "fault is probably not "
    "theirs. Pods are replaced once most nodes are ready, or the node is deleted or has the taint "
    "node.kubernetes.io/out-of-service.",
    Reason.OUTCOME_UNKNOWN: "No worker pod is left. The job may have ended: new ones are created once etcd at "
    "{endpoint} says that it has "
    "not.",
    Reason.RENDEZVOUS_LOST: "{left} of the {size} workers of round {round} are left, and etcd does not answer: "
    "training continues when "
    "it is back.",
    Reason.NO_PROGRESS: "No step has been reported since step {step} at {since}. Saving a checkpoint or evaluating "
    "may take that long; "
    "otherwise look at the workers' logs and stacks.",
    Reason.PROGRESSING: "Steps are reported.",
    Reason.FINISHED: "The job has ended.",
    Reason.WORKER_FAILED: "{worker} failed ({detail}); restart {restarts} of at most {max_restarts}.",
    Reason.WORKER_LOST: "{worker} is gone ({detail}); this restart is free.",
    Reason.RESUMED: "Training goes on in round {round}.",
    Reason.SCALING_UP: "On the way to {wanted} workers; {there} train.",
    Reason.SCALE_UP_DELAYED: "{wanted} workers from {time} on, by spec.scaling.scaleUpDelaySeconds.",
    Reason.SCALING_DOWN: "On the way to {wanted} workers; {leaving} are leaving.",
    Reason.RESIZED: "No change of size is under way; {wanted} workers are wanted.",
    Reason.WORKERS_MISSING: "{there} of {wanted} workers train.",
    Reason.NOT_TRAINING: "Nothing trains now.",
    Reason.RESIZING: "The number of workers is changing: see Resizing.",
    Reason.COMPLETE: "As many workers train as are wanted.",
    Reason.SUSPENDED: "The job is suspended: spec.lifecycle.suspend is true.",
    Reason.SUSPENDING: "The job is to be suspended; {count} worker pods are ending.",
    Reason.JOB_RESUMED: "The job is resumed with run {run}.",
    Reason.WORKERS_SUCCEEDED: "All workers ended well.",
    Reason.WORKERS_FAILED: "The workers gave up: {detail}",
    Reason.MAX_RESTARTS_EXCEEDED: "Failed {restarts} times{window}, more than spec.restartPolicy.maxRestarts "
    "({max_restarts}); "
    "last: {detail}",
    Reason.FAILED_BY_RULE: "{worker} failed in a way that ends the job by spec.restartPolicy.rules: {detail}",
    Reason.DEADLINE_EXCEEDED: "The job ran for longer than spec.lifecycle.activeDeadlineSeconds ({seconds} s).",
    Reason.STARTUP_DEADLINE_EXCEEDED: "Training did not begin within spec.lifecycle.startupDeadlineSeconds ({seconds} "
    "s): {detail}",
    Reason.NOT_FINISHED: "The job has not ended.",
    Reason.WORKER_CREATED: "Created {worker}.",
    Reason.WORKER_DELETED: "Deleted {worker}: {detail}",
    Reason.ETCD_CREATED: "Created the job's etcd {name}.",
}


def message(reason: Reason, **values: object) -> str:
    """The sentence of `reason`. Raises KeyError where a value is missing: a fault of the caller."""
    return MESSAGES[reason].format(**values)
