"""A command in the docs that would fail as it is written is found."""

from __future__ import annotations

import pytest
import yaml

from hack.checks import commands
from hack.checks.__main__ import CRD

SCHEMA = yaml.safe_load(CRD.read_text(encoding="utf-8"))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
MANIFEST = """\
```yaml
kind: ElasticJob
metadata: {{name: digits}}
spec:
  workers:
    replicas: {replicas}
    {more}
    template:
      spec:
        containers: [{{name: trainer, image: x, anything: goes}}]
```
"""


def manifest(replicas: str = "2", more: str = "minReplicas: 1") -> str:
    return MANIFEST.format(replicas=replicas, more=more)


def test_a_missing_make_target_is_found() -> None:
    known = commands.targets("check: setup ## help\n\tx\nPYTHON ?= python3\n")
    (problem,) = commands.missing_targets("a.md", "Run `make check`, then `make chek ARGS=1`, and make do.", known)
    assert problem.message == "make has no target chek"


def test_a_module_that_cannot_be_run_is_found() -> None:
    files = {"hack/chaos/__main__.py", "hack/chaos/run.py", "trainer-runtime/src/elasticjob_runtime/__main__.py"}
    page = "    python -m hack.chaos\n    python -m hack.chaos.run\n    python -m elasticjob_runtime\n"
    assert commands.missing_modules("a.md", page + "    .venv/bin/python -m pytest -q\n", files) == []
    assert commands.missing_modules("a.md", "    python -m hack.gone --list\n", files)
    assert commands.missing_modules("a.md", "    python -m no_such_package\n", files)


def test_an_unknown_flag_of_elasticrun_is_found() -> None:
    page = "```\nelasticrun --nnodes 2:4 \\\n    --max-restart=3 train.py --lr 1\n```\n`--gone x` is rejected.\n"
    known = commands.elasticrun_flags()
    found = [each.message for each in commands.missing_flags("docs/elasticrun.md", page, known)]
    assert found == ["elasticrun has no flag --max-restart", "elasticrun has no flag --gone"]
    assert len(commands.missing_flags("docs/chaos.md", page, known)) == 1


def test_a_valid_manifest_passes() -> None:
    assert commands.wrong_manifests("a.md", manifest(), SCHEMA) == []


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (manifest(more="minReplica: 1"), "no field spec.workers.minReplica"),
        (manifest(replicas="many"), "spec.workers.replicas"),
        ("```yaml\nspec: {workers: {replica: 1}}\n```\n", "no field spec.workers.replica"),
        ('`kubectl patch ej x --type merge -p \'{"spec": {"suspend": true}}\'`', "no field spec.suspend"),
        ("```yaml\na: [\n```\n", "cannot be parsed"),
    ],
    ids=["unknown field", "wrong type", "fragment", "patch", "no YAML"],
)
def test_a_manifest_that_the_crd_rejects_is_found(page: str, message: str) -> None:
    (problem,) = commands.wrong_manifests("a.md", page, SCHEMA)
    assert message in problem.message
