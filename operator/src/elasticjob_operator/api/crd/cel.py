"""How the CEL rules of the CRD are written: expression, message with values, field. The rules are in `validation` and
`worker_validation`.

Each message says which field is wrong, its value, and what to do. Two properties of CEL in a CRD shape the
expressions:

- It sees only declared fields (`elasticjob_operator.api.template`), but `==` on an object compares the undeclared ones
  too.
- The API server estimates a rule's cost from the bounds of lists and strings, and refuses the CRD above a limit.
  `string(number)` has no bound and can be joined to nothing; `format` can, and came with Kubernetes 1.30.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
"""

from __future__ import annotations

from typing import Any

Rule = dict[str, str]


def rules(*each: Rule) -> dict[str, Any]:
    """For `json_schema_extra` of a model or field."""
    return {"x-kubernetes-validations": list(each)}


def message(text: str, *values: str) -> Rule:
    """`text` with a %d or %s for the value of each expression. In the rule's message a value that is missing is an
    error: ask first."""
    if not values:
        return {"message": text}
    return {"messageExpression": f"{literal(text)}.format([{', '.join(values)}])"}


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literals(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(map(literal, texts)) + "]"


def same(field: str) -> str:
    """`field` of self did not change, appear or go."""
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


def immutable(field: str) -> Rule:
    """`field` of self may not change once the job exists."""
    name = field.rpartition(".")[2]
    return {
        "rule": same(field),
        **message(
            f"{name} cannot be changed once the job exists: delete the job and apply it again, or create one under a "
            "new name"
        ),
        "fieldPath": f".{field}",
        "reason": "FieldValueForbidden",
    }


_SUSPENDED = " || ".join(
    f"(has({which}.lifecycle) && has({which}.lifecycle.suspend) && {which}.lifecycle.suspend)"
    for which in ("oldSelf", "self")
)


def fixed_while_it_runs(field: str, within: str = "") -> Rule:
    """`field` of the spec may change only while the job is suspended; also in the very update that suspends or resumes
    it, as queues do. `within`: an object that may be missing, but then on both sides, because it has a default."""
    name = field.rpartition(".")[2]
    there = f"!has(self.{within}) || !has(oldSelf.{within}) || " if within else ""
    return {
        "rule": f"{_SUSPENDED} || {there}({same(field)})",
        **message(
            f"{name} cannot be changed while the job runs: set lifecycle.suspend to true first, then change it and "
            "set suspend to false"
        ),
        "fieldPath": f".{field}",
        "reason": "FieldValueForbidden",
    }
