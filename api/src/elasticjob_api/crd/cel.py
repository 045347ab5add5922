"""How the CEL rules of the CRD are written: expression, message with values, field. The rules are in `validation` and
`worker_validation`.

Each message says which field is wrong, its value, and what to do. Two properties of CEL in a CRD shape the
expressions:

- It sees only declared fields (`elasticjob_api.template`), but `==` on an object compares the undeclared ones
  too.
- The API server estimates a rule's cost from the bounds of lists and strings, and rejects a CRD above a limit. The
  length of `string(number)` is unbounded, so messages use `format`, which needs Kubernetes 1.30.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
"""

from __future__ import annotations

from typing import Any

Rule = dict[str, Any]


def rules(*each: Rule) -> dict[str, Any]:
    """For `json_schema_extra` of a model or field."""
    return {"x-kubernetes-validations": list(each)}


def rule(
    expression: str, text: str, *values: str, at: str = "", reason: str = "", optional_old_self: bool = False
) -> Rule:
    """`text`: the message where `expression` is not true, with a %d or %s for the value of each further expression. A
    missing value makes the message itself an error, so `expression` must check for it. `at`: path of the field.
    `optional_old_self`: `oldSelf` is an optional value, without one for a new object."""
    message = {"messageExpression": f"{literal(text)}.format([{', '.join(values)}])"} if values else {"message": text}
    place = {key: value for key, value in (("fieldPath", at), ("reason", reason)) if value}
    optional = {"optionalOldSelf": True} if optional_old_self else {}
    return {"rule": expression, **message, **place, **optional}


def must(expression: str, text: str) -> dict[str, Any]:
    """The one rule of a field: `text` has a %s for its value."""
    return rules(rule(expression, text, "self"))


def object_name(field: str, kind: str, *, unless: str = "") -> dict[str, Any]:
    """The one rule of a field that names an object. `unless`: an expression for other values."""
    expression = f"{unless}self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')"
    return must(expression, f"{field} %s cannot be the name of a {kind}: use a-z, 0-9, - and .")


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literals(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(map(literal, texts)) + "]"


def same(field: str) -> str:
    """`field` of self was not changed, set or unset."""
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


def immutable(field: str) -> Rule:
    """`field` of self cannot change once the job exists."""
    name = field.rpartition(".")[2]
    return rule(
        same(field),
        f"{name} is immutable: delete the job and apply it again, or create a job with another name",
        at=f".{field}",
        reason="FieldValueForbidden",
    )


_SUSPENDED = " || ".join(f"(has({which}.spec.suspend) && {which}.spec.suspend)" for which in ("oldSelf", "self"))
_NEVER_TRAINED = (
    "!has(oldSelf.status) || "
    "((!has(oldSelf.status.round) || oldSelf.status.round == 0) && !has(oldSelf.status.completionTime))"
)


WRITES_STATUS = "self.?status.writes != oldSelf.?status.writes"
"""It is an update of the status, which cannot change the spec, as one of the spec cannot change the status. Rules of
the whole job about changes begin with this: the API server evaluates every rule at every update, and these were a
quarter of what a status write costs."""

_THEN = "set spec.suspend to true first, then change it and set suspend to false"


def fixed_while_it_runs(field: str) -> Rule:
    """A rule of the whole job: `field` of its spec can change only while the job is suspended, or in the update that
    suspends or resumes it, as queues do."""
    return _fixed(field, _SUSPENDED, f"while the job is running: {_THEN}")


def fixed_once_trained(field: str) -> Rule:
    """Like `fixed_while_it_runs`, but free until the run has trained: a job that cannot start is mended by applying it
    again."""
    remedy = f"once the job has trained: {_THEN}; if the job has finished, delete it and apply it again"
    return _fixed(field, f"{_SUSPENDED} || {_NEVER_TRAINED}", remedy)


def _fixed(field: str, unless: str, remedy: str) -> Rule:
    within, _, name = field.rpartition(".")
    # The object around it may be missing, but only on both sides, because it has a default. `workers` is required.
    may_lack = within not in ("", "workers")
    there = f"!has(self.spec.{within}) || !has(oldSelf.spec.{within}) || " if may_lack else ""
    return rule(
        f"{WRITES_STATUS} || {unless} || {there}({same(f'spec.{field}')})",
        f"{name} cannot be changed {remedy}",
        at=f".spec.{field}",
        reason="FieldValueForbidden",
    )
