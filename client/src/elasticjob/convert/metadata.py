"""The metadata of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from elasticjob_api import API_VERSION
from elasticjob_api.crd.validation import MAX_NAME

from elasticjob.convert.draft import Draft, an_object
from elasticjob.convert.paths import Path, show
from elasticjob.convert.table import ConvertError, Field, carried, changed, irrelevant, lost
from elasticjob.convert.template import OUR_PREFIX, SERVER_SET

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_KUEUE = "kueue.x-k8s.io/"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

TABLE: tuple[Field, ...] = (
    irrelevant("apiVersion", f"the ElasticJob's is {API_VERSION}"),
    irrelevant("kind", "it is ElasticJob"),
    carried("metadata.name", "metadata.name"),
    carried("metadata.generateName", "metadata.generateName"),
    carried("metadata.namespace", "metadata.namespace"),
    carried("metadata.labels", "metadata.labels", convert=None),
    changed(
        f"metadata.labels['{_KUEUE}queue-name']",
        "metadata.labels",
        "Kueue needs an integration for ElasticJobs to manage them",
        "see docs/queueing.md; without it, the label has no effect",
    ),
    carried("metadata.annotations", "metadata.annotations", convert=None),
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
    for field in ("labels", "annotations"):
        values = an_object(document, "metadata", field)
        add_labels(draft, field, values, ("metadata", field))
        for key in values:
            if key.startswith(OUR_PREFIX):
                draft.lost(("metadata", field, key), f"{OUR_PREFIX} is reserved for the operator")
    if name:
        draft.set("metadata.name", name)
        if document.get("metadata", {}).get("name") is not None:
            draft.changed(("metadata", "name"), f"the ElasticJob is named {name}", to="metadata.name")
    check_name(draft)


def add_labels(draft: Draft, field: str, values: Mapping[str, Any], at: Path) -> None:
    """`field`: labels or annotations. Those that the job has already stay."""
    there = draft.get(f"metadata.{field}") or {}
    kept = {key: value for key, value in values.items() if key != _LAST_APPLIED and not key.startswith(OUR_PREFIX)}
    for key, value in kept.items():
        if there.get(key, value) != value:
            draft.irrelevant((*at, key), f"another value takes precedence: {there[key]}")
    if kept:
        draft.set(f"metadata.{field}", kept | there)


def check_name(draft: Draft) -> None:
    name, prefix = draft.get("metadata.name"), draft.get("metadata.generateName")
    if not name and not prefix:
        raise ConvertError(f"{show(('metadata', 'name'))} is missing")
    if name and (not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name)):
        raise ConvertError(
            f"an ElasticJob cannot be named {name}: it takes up to {MAX_NAME} of a-z, 0-9 and -, starting with a "
            "letter. Give another name with --name"
        )
