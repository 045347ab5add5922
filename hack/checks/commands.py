"""Commands in the docs: make targets, modules, elasticrun's flags and ElasticJob manifests exist as written."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml
from elasticjob_api.job import ElasticJob, InvalidJobError
from elasticjob_runtime.cli.arguments import build_parser

from hack.checks import SOURCES
from hack.checks.pages import Code, Problem, blocks, commands

FLAG_PAGES = ("docs/reference/elasticrun.md",)
"""Pages whose code spans that start with -- are elasticrun's flags."""
FLAGS_OF_OTHERS = {
    "--auto-compaction-mode": "etcd",
    "--auto-compaction-retention": "etcd",
    "--bcrypt-cost": "etcd",
    "--quota-backend-bytes": "etcd",
}
OURS = ("benchmarks", *SOURCES, "hack", "tests")
Schema = Mapping[str, Any]


def targets(makefile: str) -> set[str]:
    """The targets of a Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


def missing_targets(page: str, markdown: str, known: Collection[str]) -> list[Problem]:
    """`make X` where the Makefile has no X."""
    return [
        Problem(page, code.line, f"make has no target {name}")
        for code in commands(markdown)
        for name in re.findall(r"^make ([a-z][\w-]*)", code.text)
        if name not in known
    ]


def _exists(module: str, files: Collection[str]) -> bool:
    top = module.split(".", maxsplit=1)[0]
    if top not in OURS:
        return importlib.util.find_spec(top) is not None
    path = SOURCES.get(top, "") + module.replace(".", "/")
    return f"{path}.py" in files or f"{path}/__main__.py" in files


def missing_modules(page: str, markdown: str, files: Collection[str]) -> list[Problem]:
    """`python -m X` where X cannot be run."""
    return [
        Problem(page, code.line, f"no module {name} can be run")
        for code in commands(markdown)
        for name in re.findall(r"python3? (?:-\w+ )*-m ([\w.]+)", code.text)
        if not _exists(name, files)
    ]


def elasticrun_flags() -> set[str]:
    """All flags of elasticrun, in both spellings."""
    return set(build_parser()._option_string_actions)


def _flags(page: str, code: Code) -> Iterator[str]:
    """The flags in `code` that must be elasticrun's."""
    called = re.match(r"(?:elasticrun|python -m elasticjob_runtime) (.*)", code.text)
    if called:
        for word in called[1].split():
            if word.endswith(".py"):
                return
            if re.match(r"--[a-z]", word):
                yield word.partition("=")[0]
    elif page in FLAG_PAGES and re.match(r"--[a-z]", code.text):
        yield re.split(r"[ =]", code.text)[0]


def missing_flags(page: str, markdown: str, known: Collection[str]) -> list[Problem]:
    """Flags that elasticrun does not have."""
    return [
        Problem(page, code.line, f"elasticrun has no flag {flag}")
        for code in commands(markdown)
        for flag in _flags(page, code)
        if flag not in known and flag not in FLAGS_OF_OTHERS
    ]


def unknown_fields(value: object, schema: Schema, path: str) -> Iterator[str]:
    """Paths of the fields of `value` that the schema does not have."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from unknown_fields(item, schema.get("items", {}), f"{path}[{number}]")
    if not isinstance(value, dict) or not (schema.get("properties") or schema.get("additionalProperties")):
        return
    properties, further = schema.get("properties", {}), schema.get("additionalProperties")
    for key, item in value.items():
        if key in properties:
            yield from unknown_fields(item, properties[key], f"{path}.{key}")
        elif further is None:
            yield f"{path}.{key}"


def wrong_in(document: object, schema: Schema) -> Iterator[str]:
    """What is wrong in a manifest of an ElasticJob, or a part of one; nothing for other objects."""
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return
    whole = document.get("kind") == "ElasticJob"
    if not whole and set(document) != {"spec"}:
        return
    spec: Schema = schema["properties"]["spec"]
    yield from (f"ElasticJob has no field {path}" for path in unknown_fields(document["spec"], spec, "spec"))
    if whole:
        try:
            ElasticJob.parse(document | {"metadata": {"namespace": "default", **document.get("metadata", {})}})
        except InvalidJobError as error:
            yield str(error)


def _documents(markdown: str) -> Iterator[tuple[int, object]]:
    for block in blocks(markdown):
        if block.language in ("yaml", "yml"):
            yield from ((block.line, document) for document in yaml.safe_load_all(block.text))
    for code in commands(markdown):
        patch = re.search(r"kubectl patch (?:ej|elasticjobs?)\b.* -p '(\{.*\})'", code.text)
        if patch:
            yield code.line, json.loads(patch[1])


def wrong_manifests(page: str, markdown: str, schema: Schema) -> list[Problem]:
    """ElasticJobs, in YAML or in `kubectl patch`, that the CRD or the models reject."""
    try:
        found = list(_documents(markdown))
    except (yaml.YAMLError, ValueError) as error:
        return [Problem(page, 1, f"cannot be parsed: {error}")]
    return [Problem(page, line, each) for line, document in found for each in wrong_in(document, schema)]
