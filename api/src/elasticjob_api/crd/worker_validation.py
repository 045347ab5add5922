"""CEL validation rules of `spec.workers`: sizes and the pod template. See `cel` for how they are written."""

from __future__ import annotations

from elasticjob_runtime.contract import Env

from elasticjob_api.crd.cel import Rule, literals, must, rule, rules

MAX_PROCS_PER_WORKER = 1024

_BOUNDS_FIT = "(!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas)"
_TOO_FEW = (
    "replicas (%d) is below minReplicas (%d): raise replicas or lower minReplicas",
    "self.replicas",
    "self.minReplicas",
)
_ENOUGH = f"!{_BOUNDS_FIT} || !has(self.minReplicas) || self.minReplicas <= self.replicas"
_DESIRED = "(self.replicas == 1 && has(self.minReplicas) ? self.minReplicas : self.replicas)"
"""1 is the schema's default, so it may mean that replicas is not set. A schema cannot have another default, and
without any, kubectl scale and autoscalers fail."""
_REPLICAS = (
    rule(
        _BOUNDS_FIT,
        "minReplicas (%d) is above maxReplicas (%d): lower minReplicas or raise maxReplicas",
        "self.minReplicas",
        "self.maxReplicas",
        at=".minReplicas",
    ),
    rule(f"{_ENOUGH} || self.replicas == 1", *_TOO_FEW, at=".replicas"),
    # Changed to 1, it has been set.
    rule(f"{_ENOUGH} || oldSelf.replicas == 1", *_TOO_FEW, at=".replicas"),
    rule(
        f"!{_BOUNDS_FIT} || !has(self.maxReplicas) || self.replicas <= self.maxReplicas",
        "replicas (%d) is above maxReplicas (%d): lower replicas or raise maxReplicas",
        "self.replicas",
        "self.maxReplicas",
        at=".replicas",
    ),
)

_LEAST = "(has(self.minReplicas) ? self.minReplicas : self.replicas)"
_MOST = f"(has(self.maxReplicas) ? self.maxReplicas : {_DESIRED})"
_ALLOWED = (
    rule(
        f"!has(self.allowedReplicas) || self.allowedReplicas.all(x, {_LEAST} <= x && x <= {_MOST})",
        "allowedReplicas %s must be between minReplicas and maxReplicas (%d to %d): change one of them; both "
        "bounds default to replicas",
        "self.allowedReplicas",
        _LEAST,
        _MOST,
        at=".allowedReplicas",
    ),
    rule(
        "!has(self.allowedReplicas) || size(self.allowedReplicas) == 0 || self.allowedReplicas.exists(x, x <= "
        f"{_DESIRED})",
        "replicas (%d) is below all of allowedReplicas %s: raise replicas, or allow a smaller size",
        _DESIRED,
        "self.allowedReplicas",
        at=".replicas",
    ),
)

_WHOLE_REPLICAS = (
    *(
        rule(
            f"!has(self.replicaSize) || !has(self.{field}) || self.{field} % self.replicaSize == 0",
            f"{field} (%d) is not a multiple of replicaSize (%d), and replicas train as a whole: change one of them",
            f"self.{field}",
            "self.replicaSize",
            at=f".{field}",
        )
        for field in ("minReplicas", "maxReplicas")
    ),
    rule(
        "!has(self.replicaSize) || !has(self.allowedReplicas) || "
        "self.allowedReplicas.all(x, x % self.replicaSize == 0)",
        "allowedReplicas %s are not all multiples of replicaSize (%d), and replicas train as a whole: change one of "
        "them",
        "self.allowedReplicas",
        "self.replicaSize",
        at=".allowedReplicas",
    ),
)

_CONTAINERS = "self.template.spec.containers"
_TRAINER = f"(has(self.container) ? self.container : {_CONTAINERS}[0].name)"
_TRAINS = f"c.name == {_TRAINER}"
_RESTARTS = "has(c.restartPolicy) && c.restartPolicy != 'Never'"
_SAME_CONTAINERS = (
    f"(oldSelf.hasValue() && {_CONTAINERS} == oldSelf.value().template.spec.containers && "
    "has(self.container) == has(oldSelf.value().container) && "
    "(!has(self.container) || self.container == oldSelf.value().container))"
)
"""A stored job stays scalable when a release reserves another name."""
_RESERVED = f"e.name in {literals(Env.RESERVED)}"
_TAKES_RESERVED = f"has(c.env) && c.env.exists(e, {_RESERVED})"


def _unsupported(field: str, remedy: str) -> Rule:
    """A field of the pod's spec that a template must not set."""
    return rule(
        f"!has(self.template.spec.{field})",
        f"{field} is not supported in the template: remove it; {remedy}",
        at=f".template.spec.{field}",
        reason="FieldValueForbidden",
    )


_TEMPLATE = (
    rule(
        f"!has(self.container) || {_CONTAINERS}.exists(c, c.name == self.container)",
        "the template has no container %s, only %s: choose one of these, or remove the field to use the first",
        "self.container",
        f"{_CONTAINERS}.map(c, c.name)",
        at=".container",
    ),
    rule(
        f"{_CONTAINERS}.all(c, {_CONTAINERS}.exists_one(d, d.name == c.name))",
        "container names %s are not unique: rename one",
        f"{_CONTAINERS}.map(c, c.name)",
        at=".template.spec.containers",
    ),
    rule(
        "!has(self.template.spec.restartPolicy) || self.template.spec.restartPolicy == 'Never'",
        "restartPolicy %s is not supported: remove it; ElasticJob replaces failed worker pods, up to "
        "spec.failurePolicy.maxRestarts times",
        "self.template.spec.restartPolicy",
        at=".template.spec.restartPolicy",
    ),
    rule(
        f"!{_CONTAINERS}.exists(c, {_TRAINS} && {_RESTARTS})",
        "restartPolicy %s of container %s is not supported: remove it; ElasticJob replaces failed worker pods",
        f"{_CONTAINERS}.map(c, {_TRAINS} && {_RESTARTS}, c.restartPolicy)[0]",
        _TRAINER,
        at=".template.spec.containers",
    ),
    _unsupported("activeDeadlineSeconds", "use spec.lifecycle.activeDeadlineSeconds"),
    _unsupported("hostname", "ElasticJob sets it to <job>-worker-<index>"),
    _unsupported("subdomain", "ElasticJob sets it to the job's Service"),
    rule(
        f"{_SAME_CONTAINERS} || !{_CONTAINERS}.exists(c, {_TRAINS} && {_TAKES_RESERVED})",
        "env of container %s sets %s, which ElasticJob sets itself: remove it",
        _TRAINER,
        f"{_CONTAINERS}.map(c, {_TRAINS} && {_TAKES_RESERVED}, c.env.filter(e, {_RESERVED}).map(e, e.name))[0]",
        at=".template.spec.containers",
        reason="FieldValueForbidden",
        optional_old_self=True,
    ),
    rule(
        "!has(self.template.metadata) || !has(self.template.metadata.labels) || "
        "!self.template.metadata.labels.exists(l, l.startsWith('elasticjob.dev/'))",
        "labels %s are reserved for ElasticJob: remove them from the template",
        "self.template.metadata.labels.filter(l, l.startsWith('elasticjob.dev/'))",
        at=".template.metadata.labels",
        reason="FieldValueForbidden",
    ),
)

WORKERS = rules(*_REPLICAS, *_ALLOWED, *_WHOLE_REPLICAS, *_TEMPLATE)

PROCS_PER_WORKER = must(
    f"type(self) == int ? self >= 1 && self <= {MAX_PROCS_PER_WORKER} : self in ['auto', 'cpu', 'gpu']",
    f"procsPerWorker %s is invalid: use auto, cpu, gpu or a number from 1 to {MAX_PROCS_PER_WORKER}, without quotes",
)
