"""The CRD: its parts agree with each other, and the generated files with the models."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from elasticjob_api.crd import generate
from elasticjob_api.crd.definition import custom_resource_definition
from elasticjob_api.template import CONTAINER_FIELDS, ENV_FIELDS, POD_SPEC_FIELDS
from elasticjob_runtime.contract import Env

TEMPLATE = "spec.workers.template"


@functools.cache
def root_schema() -> dict[str, Any]:
    schema: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def fields(
    schema: dict[str, Any], path: str = "", required: bool = False
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every field below `schema`: path, schema, whether it is required."""
    if path:
        yield path, schema, required
    for name, item in schema.get("properties", {}).items():
        yield from fields(item, f"{path}.{name}".lstrip("."), name in schema.get("required", []))
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from fields(schema[key], f"{path}[]")


def own_fields() -> list[tuple[str, dict[str, Any], bool]]:
    """Without those that every Kubernetes object has, and those of core/v1 that have no type here."""
    ours = {"spec", "status"}
    return [
        (path, schema, required)
        for path, schema, required in fields(root_schema())
        if path.split(".")[0] in ours and ("type" in schema or "anyOf" in schema)
    ]


def test_columns_and_scale_name_existing_fields() -> None:
    version = custom_resource_definition()["spec"]["versions"][0]
    named = [column["jsonPath"] for column in version["additionalPrinterColumns"]] + list(
        version["subresources"]["scale"].values()
    )
    there = {f".{path}" for path, _, _ in own_fields()} | {".metadata.creationTimestamp"}
    assert set(named) <= there


def test_every_field_is_described() -> None:
    values = {path for path, _, _ in own_fields() if path.endswith("[]")}
    silent = {
        path
        for part in ("spec", "status")
        for path, schema, _ in fields(root_schema()["properties"][part], part)
        if not schema.get("description")
    }
    assert silent - values == set()


def test_integers_have_a_format_and_counts_a_bound() -> None:
    for path, schema, _ in own_fields():
        if schema.get("type") == "integer":
            assert schema.get("format") in {"int32", "int64"}, path
            assert schema["format"] == "int64" or schema["maximum"] <= 2**31 - 1, path


def test_a_status_has_no_defaults() -> None:
    assert [path for path, schema, _ in own_fields() if path.startswith("status") and "default" in schema] == []


def test_the_pod_template_keeps_unknown_fields() -> None:
    closed = [
        path
        for path, schema, _ in own_fields()
        if path.startswith(TEMPLATE)
        and schema.get("type") == "object"
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ]
    assert closed == [f"{TEMPLATE}.metadata.labels"]


@pytest.mark.parametrize(
    ("path", "names"),
    [("spec", POD_SPEC_FIELDS), ("spec.containers[]", CONTAINER_FIELDS), ("spec.containers[].env[]", ENV_FIELDS)],
)
def test_fields_of_the_template_used_by_the_operator_are_declared(path: str, names: list[str]) -> None:
    """Otherwise a rename among them would not show up as a change."""
    schema = next(schema for item, schema, _ in own_fields() if item == f"{TEMPLATE}.{path}")
    assert set(names) <= set(schema["properties"])


def test_rules_reject_every_reserved_variable() -> None:
    rules = root_schema()["properties"]["spec"]["properties"]["workers"]["x-kubernetes-validations"]
    rule = next(rule["rule"] for rule in rules if "c.env.exists" in rule["rule"])
    assert set(re.findall(r"e\.name in \[(.*?)\]", rule)) == {", ".join(f"'{name}'" for name in Env.RESERVED)}
    assert "startsWith" not in rule, "by name, because a prefix would reject variables of future torch releases"


def test_check_names_what_is_stale_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--root", str(tmp_path)]) == 0
    crd = tmp_path / "crds/elasticjobs.elasticjob.dev.yaml"
    assert yaml.load(crd.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) == custom_resource_definition()
    crd.write_text("edited by hand", encoding="utf-8")
    assert generate.main(["--check", "--root", str(tmp_path)]) == 1
    assert "crds/elasticjobs.elasticjob.dev.yaml is not up to date: run `make generate`" in capsys.readouterr().err
    assert crd.read_text(encoding="utf-8") == "edited by hand"
