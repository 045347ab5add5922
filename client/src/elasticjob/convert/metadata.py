"""The metadata of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from elasticjob_api import API_VERSION
from elasticjob_api.crd.validation import MAX_NAME

from elasticjob.convert.draft import Draft, an_object
from elasticjob.convert.paths import Path, get
from elasticjob.convert.table import ConvertError, Table, carried, changed, computed, irrelevant, lost
from elasticjob.convert.template import SERVER_SET, without_ours

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_KUEUE = "kueue.x-k8s.io/"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

TABLE: Table = (
    irrelevant("apiVersion", f"the ElasticJob's is {API_VERSION}"),
    irrelevant("kind", "it is ElasticJob"),
    carried("metadata.name", "metadata.name", of=str),
    carried("metadata.generateName", "metadata.generateName", of=str),
    carried("metadata.namespace", "metadata.namespace", of=str),
    computed("metadata.labels", "metadata.labels"),
    changed(
        f"metadata.labels['{_KUEUE}queue-name']",
        "metadata.labels",
        "the job starts once minReplicas worker pods are admitted, and grows from there",
        "see docs/guides/queueing.md",
    ),
    computed("metadata.annotations", "metadata.annotations"),
    irrelevant(f"metadata.annotations['{_LAST_APPLIED}']", "kubectl apply writes it"),
    *(irrelevant(f"metadata.{name}", "the API server sets it") for name in sorted(SERVER_SET)),
    lost("metadata.ownerReferences", "the owner manages objects of the old kind", "add a reference to the ElasticJob"),
    lost("metadata.finalizers", "a controller set it on the old object, and would not remove it from the new one"),
    irrelevant("status", "the operator writes the ElasticJob's"),
)
"""What all kinds have in common."""


def convert_metadata(document: Mapping[str, Any], draft: Draft, *, name: str = "") -> None:
    """Labels and annotations. `name`: a new name; empty: the job keeps its own. Raises ConvertError if its name is not
    one that an ElasticJob can have."""
    add_labels(draft, document, ("metadata",))
    if name:
        draft.set("metadata.name", name)
        if get(document, ("metadata", "name")) is not None:
            draft.changed(("metadata", "name"), f"the ElasticJob is named {name}", to="metadata.name")
    check_name(draft)


def add_labels(draft: Draft, document: Mapping[str, Any], path: Path, at: Path = ()) -> None:
    """The labels and annotations at `path`. Those that the job has already stay. `at`: where the document is."""
    for field in ("labels", "annotations"):
        there = draft.get(f"metadata.{field}") or {}
        given = without_ours(an_object(document, *path, field), (*at, *path, field), draft)
        given.pop(_LAST_APPLIED, None)
        for key, value in given.items():
            if there.get(key, value) != value:
                draft.irrelevant((*at, *path, field, key), f"another value takes precedence: {there[key]}")
        if given:
            draft.set(f"metadata.{field}", given | there)


def check_name(draft: Draft) -> None:
    name, prefix = draft.get("metadata.name"), draft.get("metadata.generateName")
    if not name and not prefix:
        raise ConvertError("metadata.name is missing")
    if name and (not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name)):
        raise ConvertError(
            f"an ElasticJob cannot be named {name}: it takes up to {MAX_NAME} of a-z, 0-9 and -, starting with a "
            "letter. Give another name with --name"
        )
