"""CEL validation rules of the CRD, except those of `spec.workers`, for what types and bounds of fields cannot express.
See `cel` for how they are written."""

from __future__ import annotations

from elasticjob_api.crd.cel import (
    WRITES_STATUS,
    fixed_once_trained,
    fixed_while_it_runs,
    immutable,
    must,
    object_name,
    rule,
    rules,
)
from elasticjob_api.pod_fields import FIXED_ONCE_TRAINED

MAX_NAME = 47
"""Longest name of a job: 63, the limit of a label, less `-etcd-` and the 10 characters of a StatefulSet's revision
hash.

The label `controller-revision-hash` of the etcd pod is the longest value derived from a job's name;
`<name>-worker-9999` would allow 51.
"""

JOB = rules(
    rule(
        f"size(self.metadata.name) <= {MAX_NAME}",
        f"metadata.name has %d characters: use at most {MAX_NAME}, because names derived from it are limited to 63",
        "size(self.metadata.name)",
    ),
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name %s cannot be part of a Service's name: use a-z, 0-9 and -, and start with a letter",
        "self.metadata.name",
    ),
    *(fixed_while_it_runs(f"rendezvous.{field}") for field in ("type", "backend", "endpoint", "secretName", "etcd")),
    *map(fixed_once_trained, FIXED_ONCE_TRAINED),
    rule(
        f"{WRITES_STATUS} || !has(oldSelf.status) || !has(oldSelf.status.completionTime) || "
        "self.spec.workers.replicas == oldSelf.spec.workers.replicas",
        "replicas cannot be changed: the job has finished; to train again, delete it and apply it again",
        at=".spec.workers.replicas",
        reason="FieldValueForbidden",
    ),
)

_SCALED_BY_METRICS = "(has(self.scaling) && has(self.scaling.metrics) && size(self.scaling.metrics) > 0)"
_DESIRED = (
    "(self.workers.replicas == 1 && has(self.workers.minReplicas) ? self.workers.minReplicas : self.workers.replicas)"
)
"""As in `worker_validation`."""

SPEC = rules(
    immutable("managedBy"),
    rule(
        "!has(self.scaling) || !has(self.scaling.metrics) || size(self.scaling.metrics) == 0 || "
        "(has(self.workers.minReplicas) && "
        "has(self.workers.maxReplicas) && self.workers.minReplicas < self.workers.maxReplicas)",
        "scaling.metrics requires a range of sizes: set workers.minReplicas below workers.maxReplicas, or remove "
        "the metrics",
        at=".scaling.metrics",
    ),
    rule(  # An autoscaler chooses any number, which is rounded down.
        f"!has(self.workers.replicaSize) || {_SCALED_BY_METRICS} || {_DESIRED} % self.workers.replicaSize == 0",
        "replicas (%d) is not a multiple of replicaSize (%d), and replicas train as a whole: use a multiple",
        _DESIRED,
        "self.workers.replicaSize",
        at=".workers.replicas",
    ),
    rule(
        "!has(self.workers.replicaSize) || !has(self.rendezvous) || !has(self.rendezvous.backend) || "
        "self.rendezvous.backend == 'etcd-v3'",
        "replicaSize needs elasticrun's rendezvous, and backend %s is torchrun's: use etcd-v3, or remove replicaSize",
        "self.rendezvous.backend",
        at=".workers.replicaSize",
    ),
)

LIFECYCLE = rules(
    rule(
        "!has(self.startupDeadlineSeconds) || !has(self.activeDeadlineSeconds) || "
        "self.startupDeadlineSeconds <= self.activeDeadlineSeconds",
        "startupDeadlineSeconds (%d) is above activeDeadlineSeconds (%d), which ends the job earlier: lower it or "
        "remove it",
        "self.startupDeadlineSeconds",
        "self.activeDeadlineSeconds",
        at=".startupDeadlineSeconds",
    ),
)

MANAGED_BY = must(
    r"self == '' || "
    r"self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.~]*[A-Za-z0-9])?$')",
    "managedBy %s is not a domain-prefixed name: use one such as kueue.x-k8s.io/multikueue, or remove it",
)

FAILURE_RULE = rules(
    rule(
        "(has(self.exitCodes) && size(self.exitCodes) > 0) || (has(self.reasons) && size(self.reasons) > 0)",
        "a rule without exitCodes or reasons matches nothing: set at least one of them, such as exitCodes: [42]",
    )
)

FAILURE_REASON = rules(
    rule(
        "!(self in ['OOMKilled', 'Error'])",
        "%s is not used in status.lastFailure.reason: replace OOMKilled by OutOfMemory, Error by ApplicationError",
        "self",
    ),
    rule(
        "self.matches('^[A-Z][A-Za-z0-9]*$')",
        "%s is not a reason as in status.lastFailure.reason: use one word, such as OutOfMemory or Signal",
        "self",
    ),
)

BACKOFF = rules(
    rule(  # The API server checks an object's own default before it fills in the defaults of its fields.
        "!has(self.initialSeconds) || !has(self.maxSeconds) || self.initialSeconds <= self.maxSeconds",
        "initialSeconds (%d) is above maxSeconds (%d): lower initialSeconds or raise maxSeconds",
        "self.initialSeconds",
        "self.maxSeconds",
        at=".initialSeconds",
    )
)

MAX_RESTARTS_IN_WINDOW = 100
FAILURE_POLICY = rules(
    rule(
        f"!has(self.windowSeconds) || self.maxRestarts <= {MAX_RESTARTS_IN_WINDOW}",
        f"maxRestarts (%d) is above {MAX_RESTARTS_IN_WINDOW}, the limit with windowSeconds, because status records "
        "the time of each restart: lower maxRestarts or remove windowSeconds",
        "self.maxRestarts",
        at=".maxRestarts",
    )
)

_HOST_AND_PORT = r"^(https://)?([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$"
ENDPOINT = rules(
    rule(
        f"self == '' || self.matches('{_HOST_AND_PORT}')",
        "endpoint %s is neither host:port nor https://host:port: use one such as https://etcd.example.com:2379",
        "self",
    ),
    rule(
        f"!self.matches('{_HOST_AND_PORT}') || self.matches(':0*[1-9][0-9]{{0,3}}$') || "
        "(self.matches(':[1-6][0-9]{4}$') && int(self.substring(size(self) - 5)) <= 65535)",
        "endpoint %s has no port from 1 to 65535: use one such as 2379",
        "self",
    ),
)

SECRET_NAME = object_name("secretName", "Secret", unless="self == '' || ")

_TYPE = "(has(self.type) ? self.type : 'Auto')"
_BACKEND = "(has(self.backend) ? self.backend : 'etcd-v3')"
_NAMES_ENDPOINT = "(has(self.endpoint) && self.endpoint != '')"
RENDEZVOUS = rules(
    rule(
        f"{_TYPE} != 'External' || {_NAMES_ENDPOINT}",
        "type External needs an endpoint: set host:port or https://host:port of an etcd that you run",
        at=".endpoint",
    ),
    rule(
        f"!{_NAMES_ENDPOINT} || {_TYPE} == 'External'",
        "endpoint %s is the address of an etcd that you run, but type is %s: set type: External, or remove endpoint",
        "self.endpoint",
        _TYPE,
        at=".endpoint",
    ),
    rule(
        f"!has(self.etcd) || {_TYPE} == 'Dedicated'",
        "etcd configures an etcd of this job, but type is %s: set type: Dedicated, or remove etcd",
        _TYPE,
        at=".etcd",
    ),
    rule(
        f"{_BACKEND} != 'c10d' || {_TYPE} == 'Auto'",
        "type %s is about an etcd, which backend c10d does not use, because its store is in worker pod 0: remove it, "
        "or use etcd-v3",
        _TYPE,
        at=".type",
    ),
    rule(
        f"{_BACKEND} != 'etcd-v2' || {_TYPE} == 'External'",
        "backend etcd-v2 needs an etcd that you run: set type: External, and endpoint to host:port of an etcd up to "
        "3.5 with --enable-v2, or use etcd-v3",
        at=".type",
    ),
    rule(
        f"{_BACKEND} != 'etcd-v2' || !has(self.endpoint) || !self.endpoint.startsWith('https://')",
        "endpoint %s starts with https://, which backend etcd-v2 does not understand: give host:port and set "
        "PET_RDZV_CONF to protocol=https in the template, or use etcd-v3",
        "self.endpoint",
        at=".endpoint",
    ),
    rule(
        "!has(self.secretName) || self.secretName == '' || "
        "(has(self.endpoint) && self.endpoint.startsWith('https://'))",
        "secretName %s has credentials, which are sent over TLS only: set endpoint to https://host:port, or remove "
        "secretName",
        "self.secretName",
        at=".secretName",
    ),
)

MEMBERS = rules(rule("self in [1, 3]", "members is %d: use 1, or 3 to survive the loss of a member", "self"))

MANAGED_ETCD = rules(
    rule(
        "!has(self.members) || self.members != 3 || has(self.storage)",
        "3 members need storage, because a member that returns without its data cannot take part: set storage: {}, "
        "or use 1 member",
        at=".storage",
    ),
    rule(
        "!has(self.storage) || (has(self.members) && self.members == 3)",
        "a single member needs no storage, because its data can be recreated at any moment: remove storage, or set "
        "members: 3",
        at=".storage",
    ),
)

DIRECTORY = must(
    r"self.matches('^(/[^/:]+)+$') && !self.matches('/\\.\\.?(/|$)')",
    "directory %s is not an absolute path below /: use one such as /checkpoints, without a trailing /, // or ..",
)

CLAIM = object_name("claimName", "PersistentVolumeClaim")

IMAGE = must(
    r"self.matches('^[^\\s]*$')", "image %s contains whitespace: use one such as gcr.io/etcd-development/etcd:v3.6.11"
)

QUANTITY = must(
    "type(self) == int ? self >= 0 : (isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0')))",
    "%s is not a quantity of at least 0: use one such as 500m, 2 or 1Gi",
)

_WITHIN = (
    "!(k in self.limits) || !isQuantity(string(self.limits[k])) || !isQuantity(string(self.requests[k])) || "
    "!quantity(string(self.requests[k])).isGreaterThan(quantity(string(self.limits[k])))"
)
RESOURCES = rules(
    rule(
        f"!has(self.limits) || !has(self.requests) || self.requests.all(k, {_WITHIN})",
        "requests for %s exceed the limits: lower the requests or raise the limits",
        f"self.requests.filter(k, !({_WITHIN}))",
        at=".requests",
    )
)
