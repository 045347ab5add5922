"""A field that the API had before is refused by the CRD and by the models, which name what takes its place."""

from __future__ import annotations

from typing import Any

import pytest
from elasticjob_api import ElasticJob, InvalidJobError
from elasticjob_api.crd.definition import custom_resource_definition
from elasticjob_api.refused import REFUSED, Refused

PATHS = [item.path for item in REFUSED]
EXAMPLES: dict[str, Any] = {"boolean": True, "string": "a.b/c", "object": {}, "integer": 2}


def body_with(path: str, value: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "image": "train"}]}}
    body: dict[str, Any] = {
        "metadata": {"name": "digits", "namespace": "team"},
        "spec": {"workers": {"template": template}},
    }
    *parents, name = path.split(".")
    at = body
    for parent in parents:
        at = at.setdefault(parent, {})
    at[name] = value
    return body


@pytest.mark.parametrize("each", REFUSED, ids=PATHS)
def test_a_stored_job_with_an_older_field_is_never_read_without_it(each: Refused) -> None:
    with pytest.raises(InvalidJobError) as caught:
        ElasticJob.parse(body_with(each.path, EXAMPLES[each.schema["type"]]))
    assert str(caught.value) == f"{each.path}: {each.message}"
    assert each.remedy in each.message


@pytest.mark.parametrize("each", REFUSED, ids=PATHS)
def test_the_crd_keeps_an_older_field_and_rejects_it(each: Refused) -> None:
    """A field that it does not name is pruned, and the operator would not see it."""
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in each.path.split("."):
        schema = schema["properties"][name]
    (rule,) = schema["x-kubernetes-validations"]
    assert (rule["rule"], rule["optionalOldSelf"], rule["message"]) == ("oldSelf.hasValue()", True, each.message)
    assert "default" not in schema


@pytest.mark.parametrize("value", [None, "text", ["list"]])
def test_a_malformed_spec_has_no_older_fields(value: Any) -> None:
    with pytest.raises(InvalidJobError, match="spec"):
        ElasticJob.parse({"metadata": {"name": "digits", "namespace": "team"}, "spec": value})
