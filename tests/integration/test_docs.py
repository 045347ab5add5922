"""What the docs show is accepted by the real programs: manifests by the API server, commands by kubectl and helm."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from elasticjob_api import API_VERSION

from hack.checks.examples import commands, fenced
from hack.checks.pages import commands as code_of
from hack.checks.pages import tracked
from hack.cluster.programs import program
from tests.integration.manifests import Cluster, Manifest, api, empty

__all__ = ["api", "empty"]

ROOT = Path(__file__).parents[2]
PAGES = [path for path in tracked(ROOT) if path.endswith(".md")]
MANIFESTS = [path for path in tracked(ROOT) if path.startswith("examples/") and path.endswith(".yaml")]
FOLDERS = [path.removesuffix("/kustomization.yaml") for path in MANIFESTS if path.endswith("/kustomization.yaml")]
OTHER_APIS = ("kueue.x-k8s.io/",)
"""Groups of objects that pages and examples show and this API server does not have."""

PATCH = re.compile(r"kubectl patch (?:ej|elasticjobs?)\b.* -p '(\{.*\})'")
MINIMAL: Manifest = {
    "apiVersion": API_VERSION,
    "kind": "ElasticJob",
    "metadata": {"name": "docs"},
    "spec": {"workers": {"template": {"spec": {"containers": [{"name": "a", "image": "a:1", "command": ["a"]}]}}}},
}
"""What a page leaves out where it shows a part of a job."""


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def merged(below: Any, above: Any) -> Any:
    """`above` over `below`: dicts are merged, everything else is replaced."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {key: merged(below.get(key), above.get(key, below.get(key))) for key in {**below, **above}}
    return above


def shown_manifests() -> dict[str, list[Manifest]]:
    """Page or example -> every object in its YAML; a part of a job is completed."""
    found: dict[str, list[Manifest]] = {}
    for page in PAGES:
        blocks = [block for block in fenced(text_of(page)) if block.language == "yaml"]
        found[page] = [one for block in blocks for item in yaml.safe_load_all(block.text) if (one := completed(item))]
        patches = (PATCH.match(code.text) for code in code_of(text_of(page)))
        found[page] += [completed(json.loads(patch[1])) for patch in patches if patch]
    for path in MANIFESTS:
        if path.removesuffix("/kustomization.yaml") not in FOLDERS and str(Path(path).parent) not in FOLDERS:
            found[path] = [one for item in yaml.safe_load_all(text_of(path)) if (one := completed(item))]
    return {path: manifests for path, manifests in found.items() if manifests}


def completed(document: Any) -> Manifest:
    """Empty: it is no object of Kubernetes, or of a kind that this API server does not have."""
    if isinstance(document, dict) and str(document.get("apiVersion", "")).startswith(OTHER_APIS):
        return {}
    if isinstance(document, dict) and "spec" in document and set(document) <= {"spec", "metadata"}:
        whole: Manifest = merged(MINIMAL, document)
        return whole
    return document if isinstance(document, dict) and "kind" in document else {}


def accepts(cluster: Cluster, manifests: Sequence[Manifest]) -> None:
    for manifest in manifests:
        manifest["metadata"].pop("namespace", None)
    together = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    cluster.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", stdin=together)


SHOWN = shown_manifests()


@pytest.mark.parametrize("path", SHOWN)
def test_the_api_server_accepts_every_manifest_in_the_docs(path: str, empty: Cluster) -> None:
    accepts(empty, SHOWN[path])


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_api_server_accepts_what_each_example_applies(folder: str, empty: Cluster) -> None:
    built = yaml.safe_load_all(empty.kubectl("kustomize", str(ROOT / folder)))
    manifests = [item for item in built if not item["apiVersion"].startswith(OTHER_APIS)]
    assert "ElasticJob" in {manifest["kind"] for manifest in manifests}
    accepts(empty, manifests)


def shown_commands(name: str) -> dict[str, list[list[str]]]:
    """Page -> every call of one program in its code, as words."""
    found: dict[str, list[list[str]]] = {}
    for page in PAGES:
        shown = [code.text for code in code_of(text_of(page)) if code.text.startswith(f"{name} ")]
        found[page] = [words for text in shown for words in commands(text) if words[0] == name and len(words) > 1]
    return {page: calls for page, calls in found.items() if calls}


@functools.cache
def help_of(name: str, *words: str) -> str:
    return subprocess.run([program(name), *words], check=True, capture_output=True, text=True).stdout


def unknown_flags(words: list[str], known: str) -> list[str]:
    """The flags in `words` that the text of a help page does not list."""
    given = [word.partition("=")[0] for word in words if word.startswith("-") and word != "-"]
    listed = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", known)) | {"--help"}
    return [flag for flag in given if flag not in listed]


def before_separator(words: list[str]) -> list[str]:
    """The words before --, after which another program's begin."""
    return words[: words.index("--")] if "--" in words else words


def names(words: list[str]) -> list[str]:
    """The command and its subcommands: every word before the first flag. kubectl ignores further ones."""
    end = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    return words[1:end]


OF_KUBECTL, OF_HELM = shown_commands("kubectl"), shown_commands("helm")


@pytest.mark.parametrize("page", OF_KUBECTL)
def test_kubectl_knows_every_command_in_the_docs(page: str) -> None:
    for words in map(before_separator, OF_KUBECTL[page]):
        if words[1] != "elasticjob":  # hack.checks knows the client's own commands
            known = help_of("kubectl", *names(words), "--help") + help_of("kubectl", "options")
            assert unknown_flags(words, known) == [], words


@pytest.mark.parametrize("page", OF_HELM)
def test_helm_knows_every_command_in_the_docs(page: str) -> None:
    for words in map(before_separator, OF_HELM[page]):
        assert unknown_flags(words, help_of("helm", words[1], "--help")) == [], words


def test_a_flag_that_kubectl_does_not_have_is_found() -> None:
    known = help_of("kubectl", "get", "--help") + help_of("kubectl", "options")
    assert unknown_flags(["kubectl", "get", "ej", "--wach", "-o", "wide", "-A"], known) == ["--wach"]
