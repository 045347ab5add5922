"""Pod templates: what the operator of an ElasticJob sets itself leaves the template, everything else stays."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from elasticjob_api.template import RESERVED_VARIABLES

from elasticjob.convert.command import Launch, Style, Word, launch
from elasticjob.convert.draft import Draft, a_list, an_object
from elasticjob.convert.paths import Path
from elasticjob.convert.table import ConvertError, Note, Outcome, Table, irrelevant, lost

OUR_PREFIX = "elasticjob.dev/"
OUR_JOB_LABEL, OUR_INDEX_LABEL = "elasticjob.dev/job-name", "elasticjob.dev/worker-index"
TEMPLATE = "spec.workers.template"

SERVER_SET = frozenset(
    {
        "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields",
        "resourceVersion", "selfLink", "uid",
    }
)  # fmt: skip
"""Fields of an object's metadata that the API server sets."""

_REPLACED = irrelevant("restartPolicy", "the operator replaces failed worker pods itself")
_DNS = "the operator sets it: a worker pod is <pod>.<job> in the job's namespace"
_NAMED = "the operator names worker pods, in the job's namespace"
_OF_METADATA: Table = (
    *(irrelevant(name, "the API server sets it") for name in SERVER_SET),
    *(irrelevant(name, _NAMED) for name in ("name", "generateName", "namespace")),
)
_OF_PODS: Table = (
    _REPLACED,
    lost(
        "activeDeadlineSeconds", "a worker pod has no deadline of its own", "set spec.lifecycle.activeDeadlineSeconds"
    ),
    lost("hostname", _DNS),
    lost("subdomain", _DNS),
)

_IN_SCRIPT = "elasticrun sets it for worker processes only: read it from the environment in the script"
_OF_WORKER_PROCESSES = dict.fromkeys(
    ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"), _IN_SCRIPT
)
_CHOSEN_BY_ELASTICRUN = dict.fromkeys(
    ("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"), "elasticrun chooses it at each rendezvous: remove it"
)
_WITHOUT_VALUE = _OF_WORKER_PROCESSES | _CHOSEN_BY_ELASTICRUN
_SETTINGS = {"PET_NNODES": "nnodes", "PET_NPROC_PER_NODE": "nproc_per_node", "PET_MAX_RESTARTS": "max_restarts"}
"""Variables that stand for a flag of torchrun."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What the operator that a job comes from does with a pod template."""

    container: str = ""
    """Name of the training container. Empty, or if there is none of that name: the first."""
    implied_launcher: bool = False
    """The image's entry point is torchelastic's launcher, and the container's args are its flags."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables that only this operator sets -> what to use instead."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Labels that it puts on pods -> ours; empty: ElasticJob has none like it."""


def training_container(template: Mapping[str, Any], name: str, *, at: Path = ()) -> int:
    """The index of the container of that name, else of the first. Raises ConvertError if there is none."""
    containers = a_list(template, "spec", "containers", at=at)
    if not containers:
        raise ConvertError("the pod template has no containers")
    return next((index for index, container in enumerate(containers) if container.get("name") == name), 0)


def set_template(draft: Draft, template: Mapping[str, Any], at: Path, origin: Origin) -> Launch:
    """Sets the template of the worker pods, and returns what its training container runs. `at`: where the template is
    in the input, for the notes."""
    for key in template.keys() - {"metadata", "spec"}:
        if key in ("apiVersion", "kind"):
            draft.irrelevant((*at, key), "a template is always one of pods")
        else:
            draft.add(Note((*at, key), Outcome.UNKNOWN, "a pod template has metadata and spec only"))
    metadata = _metadata(an_object(template, "metadata"), (*at, "metadata"), draft)
    spec = _with_our_labels(an_object(template, "spec"), (*at, "spec"), origin.labels, draft)
    spec = _without(spec, _OF_PODS, (*at, "spec"), draft)
    index = training_container(template, origin.container, at=at)
    container = spec["containers"][index]
    spec["containers"][index], launched = _converted(container, (*at, "spec", "containers", index), origin, draft)
    draft.set(TEMPLATE, {"metadata": metadata, "spec": spec} if metadata else {"spec": spec})
    if index:
        draft.set("spec.workers.container", container.get("name"))
    return launched


def _without(fields: Mapping[str, Any], removed: Table, at: Path, draft: Draft) -> dict[str, Any]:
    """Those that stay; the others are noted."""
    for row in removed:
        if fields.get(row.path) is not None:
            draft.add(Note((*at, row.path), row.outcome, row.why, row.instead))
    return {key: value for key, value in fields.items() if key not in {row.path for row in removed}}


def _metadata(metadata: Mapping[str, Any], at: Path, draft: Draft) -> dict[str, Any]:
    kept = _without(metadata, _OF_METADATA, at, draft)
    for field in kept.keys() - {"labels", "annotations"}:
        why = "worker pods get labels and annotations from the template, and nothing else"
        draft.lost((*at, field), why)
    result = {
        field: without_ours(value, (*at, field), draft) if isinstance(value := kept[field], dict) else value
        for field in ("labels", "annotations")
        if field in kept
    }
    return {field: value for field, value in result.items() if value}


def without_ours(labels: Mapping[str, Any], at: Path, draft: Draft) -> dict[str, Any]:
    """Labels or annotations that a user may set."""
    for key in labels:
        if key.startswith(OUR_PREFIX):
            draft.lost((*at, key), f"{OUR_PREFIX} is reserved for the operator")
    return {key: value for key, value in labels.items() if not key.startswith(OUR_PREFIX)}


def _converted(container: Mapping[str, Any], at: Path, origin: Origin, draft: Draft) -> tuple[dict[str, Any], Launch]:
    """The training container, and what it runs."""
    words = {key: _words(container, key, at) for key in ("command", "args")}
    launched = launch(words["command"], words["args"], implied_launcher=origin.implied_launcher, at=at)
    for note in launched.notes:
        draft.add(note)
    _warn_of_references(container, launched, at, origin, draft)
    env, settings = _variables(container, at, draft)
    new = {"env": env, "command": [word.text for word in launched.command]}
    new["args"] = [word.text for word in launched.args]
    result = {**_without(container, (_REPLACED,), at, draft), **new}
    first = ("name", "image", "imagePullPolicy", "command", "args")
    keys = sorted(result, key=lambda key: first.index(key) if key in first else len(first))
    ordered = {key: result[key] for key in keys if result[key] or key not in new}
    return ordered, dataclasses.replace(launched, settings=settings | launched.settings)


def _words(container: Mapping[str, Any], key: str, at: Path) -> list[Word]:
    words = container.get(key)
    if words is None:
        return []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConvertError(
            f"{key} of container {container.get('name')} is {words!r:.60}: write a list of strings, and numbers in "
            "quotes"
        )
    return [Word(word, (*at, key, index)) for index, word in enumerate(words)]


def _variables(container: Mapping[str, Any], at: Path, draft: Draft) -> tuple[list[Any], dict[str, Word]]:
    """Without those that the operator sets, and with the last of those that are set twice; and those that stand for a
    flag of torchrun."""
    variables = a_list(container, "env", at=at)
    last = {variable.get("name"): index for index, variable in enumerate(variables)}
    settings: dict[str, Word] = {}
    kept: list[Any] = []
    for index, variable in enumerate(variables):
        name, here = str(variable.get("name")), (*at, "env", index)
        if name in _SETTINGS and isinstance(variable.get("value"), str) and "$" not in variable["value"]:
            settings[_SETTINGS[name]] = Word(variable["value"], here)
        elif name in RESERVED_VARIABLES or name in _CHOSEN_BY_ELASTICRUN:
            draft.irrelevant(here, f"{name} is set by the operator or by elasticrun")
        elif last[variable.get("name")] != index:
            draft.lost(here, f"{name} is set again below, and the last one counts")
        else:
            kept.append(variable)
    return kept, settings


def _warn_of_references(container: Mapping[str, Any], launched: Launch, at: Path, origin: Origin, draft: Draft) -> None:
    """To variables in command, args and env that no longer have a value there."""
    variables = a_list(container, "env", at=at)
    known = {variable.get("name") for variable in variables} - _WITHOUT_VALUE.keys()
    gone = {name: instead for name, instead in {**_WITHOUT_VALUE, **origin.variables}.items() if name not in known}
    in_shell = r"|\${{?{0}\b" if launched.style is Style.SHELL else ""
    texts = [(word.text, word.path, "", in_shell) for word in (*launched.command, *launched.args)]
    for index, entry in enumerate(variables):
        if entry.get("name") not in _WITHOUT_VALUE and isinstance(entry.get("value"), str):
            texts.append((entry["value"], (*at, "env", index), f" of {entry.get('name')}", ""))
    for text, path, of, or_else in texts:
        used = [name for name in gone if re.search((r"\$\({0}\)" + or_else).format(name), text)]
        if used:
            why = f"the value{of} uses {', '.join(used)}, which the container of an ElasticJob does not have"
            draft.changed(path, why, "; ".join(dict.fromkeys(gone[name] for name in used)))


def _with_our_labels(value: Any, at: Path, labels: Mapping[str, str], draft: Draft) -> Any:
    """The same, with the names of our labels wherever a label of the other operator has a counterpart."""
    if isinstance(value, dict):
        for label in labels.keys() & value.keys():
            _note_label(draft, (*at, label), label, labels[label])
        return {
            labels.get(key) or key: _with_our_labels(item, (*at, key), labels, draft) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_our_labels(item, (*at, index), labels, draft) for index, item in enumerate(value)]
    for label, ours in labels.items() if isinstance(value, str) else ():
        if value == label or f"['{label}']" in value:
            _note_label(draft, at, label, ours)
            value = (ours or label) if value == label else value.replace(f"['{label}']", f"['{ours or label}']")
    return value


def _note_label(draft: Draft, at: Path, label: str, ours: str) -> None:
    if ours:
        draft.carried(at, f"{label} is {ours} on worker pods", to=TEMPLATE)
    else:
        draft.changed(at, f"worker pods have no label {label}", "remove it or replace it")
