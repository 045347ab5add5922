"""CEL rules of the CRD: what one field's type and bounds cannot say. The API server applies them at every write.

Each says in its message which field is wrong, its value, and what to do. Two things about CEL in a CRD shape the expressions below:

- It sees declared fields alone (`elasticjob_operator.api.template`), but `==` on an object compares the undeclared ones too.
- The API server estimates a rule's cost from the bounds of lists and strings, and refuses the CRD above a limit. `string(number)` has no
  bound and can be joined to nothing; `format` can, and came with Kubernetes 1.29.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
"""

from __future__ import annotations

from typing import Any

from elasticjob_runtime.contract import Env

MAX_PROCS_PER_WORKER = 1024

MAX_NAME = 47
"""Longest name of a job: 63, the limit of a label, less `-etcd-` and the 10 characters of a StatefulSet's revision hash.

The label `controller-revision-hash` of the etcd pod is the longest value made from a job's name; `<name>-worker-9999` would allow 51.
"""

Rule = dict[str, str]


def rules(*each: Rule) -> dict[str, Any]:
    """For `json_schema_extra` of a model or field."""
    return {"x-kubernetes-validations": list(each)}


def _message(text: str, *values: str) -> Rule:
    """`text` with a %d or %s for the value of each expression. In the rule's message a value that is missing is an error: ask first."""
    if not values:
        return {"message": text}
    return {"messageExpression": f"{_literal(text)}.format([{', '.join(values)}])"}


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _literals(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(map(_literal, texts)) + "]"


def _same(field: str) -> str:
    """`field` of self did not change, appear or go."""
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


def _immutable(field: str) -> Rule:
    """`field` of self may not change once the job exists."""
    name = field.rpartition(".")[2]
    return {
        "rule": _same(field),
        **_message(f"{name} cannot be changed once the job exists: delete the job and apply it again, or create one under a new name"),
        "fieldPath": f".{field}",
        "reason": "FieldValueForbidden",
    }


_SUSPENDED = "has(oldSelf.lifecycle) && has(oldSelf.lifecycle.suspend) && oldSelf.lifecycle.suspend"


def _fixed_while_it_runs(field: str, within: str = "") -> Rule:
    """`field` of the spec may change only while the job is suspended; also in the very update that resumes it. `within`: an object that may
    be missing, but then on both sides, because it has a default."""
    name = field.rpartition(".")[2]
    there = f"!has(self.{within}) || !has(oldSelf.{within}) || " if within else ""
    return {
        "rule": f"({_SUSPENDED}) || {there}({_same(field)})",
        **_message(
            f"{name} cannot be changed while the job runs: set lifecycle.suspend to true first, then change it and set suspend to false"
        ),
        "fieldPath": f".{field}",
        "reason": "FieldValueForbidden",
    }


JOB = rules(
    {
        "rule": f"size(self.metadata.name) <= {MAX_NAME}",
        **_message(
            f"metadata.name has %d characters: shorten it to {MAX_NAME}, because names made from it must fit into 63",
            "size(self.metadata.name)",
        ),
    },
    {
        "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        **_message(
            "metadata.name %s cannot be part of a Service's name: use a-z, 0-9 and -, no dots, and begin with a letter",
            "self.metadata.name",
        ),
    },
)

SPEC = rules(
    _immutable("rendezvous"),
    _fixed_while_it_runs("checkpoint"),
    _fixed_while_it_runs("workers.template"),
    _fixed_while_it_runs("workers.container"),
    _fixed_while_it_runs("workers.procsPerWorker"),
    _fixed_while_it_runs("scheduling.priorityClassName", within="scheduling"),
    {
        "rule": "!has(self.scaling) || !has(self.scaling.metrics) || size(self.scaling.metrics) == 0 || has(self.workers.maxReplicas)",
        **_message("scaling.metrics need room to scale: set workers.maxReplicas (and minReplicas), or remove the metrics"),
        "fieldPath": ".scaling.metrics",
    },
)

LIFECYCLE = rules(
    _immutable("managedBy"),
    {
        "rule": "!has(self.startupDeadlineSeconds) || !has(self.activeDeadlineSeconds) || "
        "self.startupDeadlineSeconds <= self.activeDeadlineSeconds",
        **_message(
            "startupDeadlineSeconds (%d) is above activeDeadlineSeconds (%d), which ends the job before: lower it or leave it out",
            "self.startupDeadlineSeconds",
            "self.activeDeadlineSeconds",
        ),
        "fieldPath": ".startupDeadlineSeconds",
    },
)

MANAGED_BY = rules(
    {
        "rule": r"self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.~]*[A-Za-z0-9])?$')",
        **_message(
            "managedBy %s is not a domain, a slash and a name: write one such as kueue.x-k8s.io/multikueue, or leave it out",
            "self",
        ),
    },
)

_BOUNDS_FIT = "(!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas)"
_REPLICAS = rules(
    {
        "rule": _BOUNDS_FIT,
        **_message(
            "minReplicas (%d) is above maxReplicas (%d): lower minReplicas or raise maxReplicas",
            "self.minReplicas",
            "self.maxReplicas",
        ),
        "fieldPath": ".minReplicas",
    },
    {
        "rule": f"!{_BOUNDS_FIT} || !has(self.minReplicas) || self.minReplicas <= self.replicas",
        **_message("replicas (%d) is below minReplicas (%d): raise replicas or lower minReplicas", "self.replicas", "self.minReplicas"),
        "fieldPath": ".replicas",
    },
    {
        "rule": f"!{_BOUNDS_FIT} || !has(self.maxReplicas) || self.replicas <= self.maxReplicas",
        **_message("replicas (%d) is above maxReplicas (%d): lower replicas or raise maxReplicas", "self.replicas", "self.maxReplicas"),
        "fieldPath": ".replicas",
    },
)

_LEAST, _MOST = (f"(has(self.{bound}) ? self.{bound} : self.replicas)" for bound in ("minReplicas", "maxReplicas"))
_ALLOWED = rules(
    {
        "rule": "!has(self.allowedReplicas) || !has(self.replicaStep)",
        **_message("allowedReplicas and replicaStep both say which sizes are allowed: remove either"),
        "fieldPath": ".replicaStep",
    },
    {
        "rule": f"!has(self.allowedReplicas) || self.allowedReplicas.all(x, {_LEAST} <= x && x <= {_MOST})",
        **_message(
            "allowedReplicas %s are not all from minReplicas to maxReplicas (%d to %d): change either; both bounds default to replicas",
            "self.allowedReplicas",
            _LEAST,
            _MOST,
        ),
        "fieldPath": ".allowedReplicas",
    },
    {
        "rule": "!has(self.allowedReplicas) || self.allowedReplicas.exists(x, x <= self.replicas)",
        **_message(
            "replicas (%d) is below all of allowedReplicas %s: raise replicas, or allow a smaller size",
            "self.replicas",
            "self.allowedReplicas",
        ),
        "fieldPath": ".replicas",
    },
    {
        "rule": f"!has(self.replicaStep) || {_LEAST} % self.replicaStep == 0",
        **_message("minReplicas (%d; default: replicas) is not a multiple of replicaStep (%d): change either", _LEAST, "self.replicaStep"),
        "fieldPath": ".minReplicas",
    },
)

_CONTAINERS = "self.template.spec.containers"
_TRAINS = f"c.name == (has(self.container) ? self.container : {_CONTAINERS}[0].name)"
_RESERVED = f"(e.name in {_literals(Env.RESERVED)} || {_literals(Env.RESERVED_PREFIXES)}.exists(p, e.name.startsWith(p)))"

_TEMPLATE = rules(
    {
        "rule": f"!has(self.container) || {_CONTAINERS}.exists(c, c.name == self.container)",
        **_message(
            "the template has no container %s, it has %s: name one of these, or leave container out for the first",
            "self.container",
            f"{_CONTAINERS}.map(c, c.name)",
        ),
        "fieldPath": ".container",
    },
    {
        "rule": "!has(self.template.spec.restartPolicy) || self.template.spec.restartPolicy == 'Never'",
        **_message(
            "restartPolicy %s does not work here: leave it out; ElasticJob replaces failed workers, up to spec.restartPolicy.maxRestarts",
            "self.template.spec.restartPolicy",
        ),
        "fieldPath": ".template.spec.restartPolicy",
    },
    {
        "rule": f"!{_CONTAINERS}.exists(c, {_TRAINS} && has(c.env) && c.env.exists(e, {_RESERVED}))",
        **_message(
            "env of container %s sets %s, which ElasticJob sets itself: remove it",
            f"has(self.container) ? self.container : {_CONTAINERS}[0].name",
            f"{_CONTAINERS}.map(c, {_TRAINS} && has(c.env), c.env.filter(e, {_RESERVED}).map(e, e.name))[0]",
        ),
        "fieldPath": ".template.spec.containers",
        "reason": "FieldValueForbidden",
    },
    {
        "rule": "!has(self.template.metadata) || !has(self.template.metadata.labels) || "
        "!self.template.metadata.labels.exists(l, l.startsWith('elasticjob.dev/'))",
        **_message(
            "labels %s belong to ElasticJob: remove them from the template",
            "self.template.metadata.labels.filter(l, l.startsWith('elasticjob.dev/'))",
        ),
        "fieldPath": ".template.metadata.labels",
        "reason": "FieldValueForbidden",
    },
)

WORKERS = rules(
    *_REPLICAS["x-kubernetes-validations"],
    *_ALLOWED["x-kubernetes-validations"],
    *_TEMPLATE["x-kubernetes-validations"],
)

PROCS_PER_WORKER = rules(
    {
        "rule": f"type(self) == int ? self >= 1 && self <= {MAX_PROCS_PER_WORKER} : self in ['auto', 'cpu', 'gpu']",
        **_message(f"procsPerWorker is %s: write auto, cpu, gpu or a number from 1 to {MAX_PROCS_PER_WORKER}, without quotes", "self"),
    },
)

RESTART_RULE = rules(
    {
        "rule": "(has(self.exitCodes) && size(self.exitCodes) > 0) || (has(self.reasons) && size(self.reasons) > 0)",
        **_message("a rule without exitCodes and reasons matches nothing: give at least one of either, such as exitCodes: [42]"),
    },
)

BACKOFF = rules(
    {
        # Where it is an object's own default, the fields' defaults are not there yet.
        "rule": "!has(self.initialSeconds) || !has(self.maxSeconds) || self.initialSeconds <= self.maxSeconds",
        **_message(
            "initialSeconds (%d) is above maxSeconds (%d): lower initialSeconds or raise maxSeconds",
            "self.initialSeconds",
            "self.maxSeconds",
        ),
        "fieldPath": ".initialSeconds",
    },
)

MAX_RESTARTS_IN_WINDOW = 100
RESTART_POLICY = rules(
    {
        "rule": f"!has(self.windowSeconds) || self.maxRestarts <= {MAX_RESTARTS_IN_WINDOW}",
        **_message(
            f"maxRestarts (%d) is above {MAX_RESTARTS_IN_WINDOW}, the most within windowSeconds, because their times are kept in status: "
            "lower maxRestarts, or leave windowSeconds out",
            "self.maxRestarts",
        ),
        "fieldPath": ".maxRestarts",
    },
)

ENDPOINT = rules(
    {
        "rule": r"self == '' || self.matches('^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$')",
        **_message("endpoint %s is not host:port: write it without a scheme, such as etcd.example.com:2379", "self"),
    },
)

RENDEZVOUS = rules(
    {
        "rule": "!has(self.etcd) || !has(self.endpoint) || self.endpoint == ''",
        **_message("etcd describes the one that the operator makes, endpoint names one that you run: remove either"),
        "fieldPath": ".etcd",
    },
    {
        "rule": "!has(self.backend) || self.backend == 'etcd-v3' || !has(self.etcd)",
        **_message("etcd describes the one that the operator makes for backend etcd-v3, but backend is %s: remove it", "self.backend"),
        "fieldPath": ".etcd",
    },
    {
        "rule": "!has(self.backend) || self.backend != 'c10d' || !has(self.endpoint) || self.endpoint == ''",
        **_message("endpoint %s is not used by backend c10d, whose workers meet at worker 0: remove it, or use etcd-v3", "self.endpoint"),
        "fieldPath": ".endpoint",
    },
    {
        "rule": "!has(self.backend) || self.backend != 'etcd-v2' || (has(self.endpoint) && self.endpoint != '')",
        **_message("backend etcd-v2 needs an endpoint: host:port of an etcd up to 3.5 with --enable-v2; or use etcd-v3"),
        "fieldPath": ".endpoint",
    },
)

DIRECTORY = rules(
    {
        "rule": "self.matches('^/[^:]+$')",
        **_message("directory %s is not an absolute path below /: write one such as /checkpoints", "self"),
    },
)

QUANTITY = rules(
    {
        "rule": "type(self) == int || isQuantity(string(self))",
        **_message("%s is not a quantity: write one such as 500m, 2 or 1Gi", "self"),
    },
)

_VOLUMES = ("persistentVolumeClaim", "nfs", "hostPath", "csi", "cephfs", "azureFile", "emptyDir")
VOLUME = rules(
    {
        "rule": "[" + ", ".join(f"has(self.{kind})" for kind in _VOLUMES) + "].filter(x, x).size() == 1",
        **_message(
            "write exactly one kind of volume, such as persistentVolumeClaim: {claimName: checkpoints}; "
            "mount other kinds in the template, and leave volume out"
        ),
    },
)
