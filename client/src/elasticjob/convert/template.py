"""Pod templates: what the operator of an ElasticJob sets itself leaves the template, everything else stays."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticjob_api.template import RESERVED_VARIABLES

from elasticjob.convert.command import Launch, Setting, Style, Word, launch
from elasticjob.convert.draft import Draft, a_list, an_object
from elasticjob.convert.paths import Path, leaves
from elasticjob.convert.table import ConvertError, Note, Outcome

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

_IN_SCRIPT = "elasticrun sets it for worker processes only: read it from the environment in the script"
_OF_WORKER_PROCESSES = dict.fromkeys(
    ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"), _IN_SCRIPT
)
_CHOSEN_BY_ELASTICRUN = dict.fromkeys(
    ("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"), "elasticrun chooses it at each rendezvous: remove it"
)
_SETTINGS = {"PET_NNODES": "nnodes", "PET_NPROC_PER_NODE": "nproc_per_node", "PET_MAX_RESTARTS": "max_restarts"}
"""Variables that stand for a flag of torchrun."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What the operator that a job comes from does with a pod template."""

    kind: str
    container: str = ""
    """Name of the training container. Empty, or if there is none of that name: the first."""
    implied_launcher: bool = False
    """The image's entry point is torchelastic's launcher, and the container's args are its flags."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables that only this operator sets -> what to use instead."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Labels that it puts on pods -> ours; empty: ElasticJob has none like it."""


def set_template(draft: Draft, template: Mapping[str, Any], at: Path, origin: Origin) -> Launch:
    """Sets the template of the worker pods, and returns what its training container runs. `at`: where the template is
    in the input, for the notes."""
    result = {
        "metadata": _metadata(an_object(template, "metadata"), (*at, "metadata"), draft),
        "spec": _pod_spec(an_object(template, "spec"), (*at, "spec"), draft),
    }
    for key in template.keys() - result.keys():
        if key in ("apiVersion", "kind"):
            draft.irrelevant((*at, key), "a template is always one of pods")
        else:
            draft.note((*at, key), Outcome.UNKNOWN, "a pod template has metadata and spec only")
    containers = a_list(template, "spec", "containers", at=at)
    if not containers:
        raise ConvertError("the pod template has no containers")
    index = next((i for i, each in enumerate(containers) if each.get("name") == origin.container), 0)
    here = (*at, "spec", "containers", index)
    converted, launched = _training_container(containers[index], here, origin, draft)
    result["spec"]["containers"][index] = converted
    draft.notes += _references(containers[index], launched, here, origin)
    draft.notes += _foreign_labels(template.get("spec"), (*at, "spec"), origin)
    result["spec"] = _with_our_labels(result["spec"], origin)
    draft.set(TEMPLATE, {key: value for key, value in result.items() if value})
    if index:
        draft.set("spec.workers.container", containers[index].get("name"))
    return launched


def _metadata(metadata: Mapping[str, Any], at: Path, draft: Draft) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in metadata.items():
        if key in ("labels", "annotations"):
            kept = _without_ours(value, (*at, key), draft) if isinstance(value, dict) else value
            result |= {key: kept} if kept else {}
        elif key in SERVER_SET:
            draft.irrelevant((*at, key), "the API server sets it")
        elif key in ("name", "generateName", "namespace"):
            draft.irrelevant((*at, key), "the operator names worker pods, in the job's namespace")
        else:
            draft.lost((*at, key), "worker pods get labels and annotations from the template, and nothing else")
    return result


def _without_ours(labels: Mapping[str, Any], at: Path, draft: Draft) -> dict[str, Any]:
    for key in labels:
        if key.startswith(OUR_PREFIX):
            draft.lost((*at, key), f"{OUR_PREFIX} is reserved for the operator")
    return {key: value for key, value in labels.items() if not key.startswith(OUR_PREFIX)}


def _pod_spec(spec: Mapping[str, Any], at: Path, draft: Draft) -> dict[str, Any]:
    result = copy.deepcopy(dict(spec))
    for key in ("restartPolicy", "activeDeadlineSeconds", "hostname", "subdomain"):
        if key not in result:
            continue
        del result[key]
        if key == "restartPolicy":
            draft.irrelevant((*at, key), "the operator replaces failed worker pods itself")
        elif key == "activeDeadlineSeconds":
            draft.lost(
                (*at, key), "a worker pod has no deadline of its own", "set spec.lifecycle.activeDeadlineSeconds"
            )
        else:
            draft.lost((*at, key), "the operator sets it: a worker pod is <pod>.<job> in the job's namespace")
    return result


def _training_container(
    container: Mapping[str, Any], at: Path, origin: Origin, draft: Draft
) -> tuple[dict[str, Any], Launch]:
    result = copy.deepcopy(dict(container))
    if result.pop("restartPolicy", None) is not None:
        draft.irrelevant((*at, "restartPolicy"), "the operator replaces failed worker pods itself")
    settings = _clean_variables(result, at, draft)
    words = {key: _words(container, key, at) for key in ("command", "args")}
    launched = launch(words["command"], words["args"], implied_launcher=origin.implied_launcher, at=at)
    launched = dataclasses.replace(launched, settings=settings | launched.settings)
    draft.notes += launched.notes
    for key, new in (("command", launched.command), ("args", launched.args)):
        result.pop(key, None)
        if new:
            result[key] = [word.text for word in new]
    return _in_order(result), launched


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


def _clean_variables(container: dict[str, Any], at: Path, draft: Draft) -> dict[str, Setting]:
    """Removes the variables that the operator sets, and all but the last of those that are set twice. Returns those
    that stand for a flag of torchrun."""
    variables = a_list(container, "env", at=at)
    last = {each.get("name"): index for index, each in enumerate(variables)}
    settings = {}
    kept = []
    for index, each in enumerate(variables):
        name, here = str(each.get("name")), (*at, "env", index)
        if name in _SETTINGS and isinstance(each.get("value"), str) and "$" not in each["value"]:
            settings[_SETTINGS[name]] = Setting(each["value"], here)
        elif name in RESERVED_VARIABLES or name in _CHOSEN_BY_ELASTICRUN:
            draft.irrelevant(here, f"{name} is set by the operator or by elasticrun")
        elif last[each.get("name")] != index:
            draft.lost(here, f"{name} is set again below, and the last one counts")
        else:
            kept.append(each)
    if kept:
        container["env"] = kept
    else:
        container.pop("env", None)
    return settings


def _in_order(container: dict[str, Any]) -> dict[str, Any]:
    first = ("name", "image", "imagePullPolicy", "command", "args")
    keys = sorted(container, key=lambda key: first.index(key) if key in first else len(first))
    return {key: container[key] for key in keys}


def _references(container: Mapping[str, Any], launched: Launch, at: Path, origin: Origin) -> Iterator[Note]:
    """Warnings about variables in command, args and env that no longer have a value there."""
    removed = {**_OF_WORKER_PROCESSES, **_CHOSEN_BY_ELASTICRUN}
    variables = a_list(container, "env", at=at)
    known = {each.get("name") for each in variables} - removed.keys()
    gone = {name: instead for name, instead in {**removed, **origin.variables}.items() if name not in known}
    shell = launched.style is Style.SHELL
    for word in (*launched.command, *launched.args):
        yield from _gone(word.text, word.path, gone, shell=shell)
    for index, each in enumerate(variables):
        if each.get("name") not in removed and isinstance(each.get("value"), str):
            yield from _gone(each["value"], (*at, "env", index), gone, shell=False, name=f" of {each.get('name')}")


def _gone(text: str, path: Path, gone: Mapping[str, str], *, shell: bool, name: str = "") -> Iterator[Note]:
    used = [each for each in gone if re.search(rf"\$\({each}\)" + (rf"|\${{?{each}\b" if shell else ""), text)]
    if used:
        why = f"the value{name} uses {', '.join(used)}, which the container of an ElasticJob does not have"
        yield Note(path, Outcome.CHANGED, why, "; ".join(dict.fromkeys(gone[each] for each in used)))


def _label_paths(spec: Any, labels: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Where the pod's spec mentions a label, as a key or in a value."""
    for path, value in leaves(spec):
        for label in labels:
            if label in path or value == label or (isinstance(value, str) and f"['{label}']" in value):
                yield path, label


def _foreign_labels(spec: Any, at: Path, origin: Origin) -> Iterator[Note]:
    for path, label in _label_paths(spec, origin.labels):
        ours = origin.labels[label]
        if ours:
            yield Note((*at, *path), Outcome.CARRIED, f"{label} is {ours} on worker pods", to=TEMPLATE)
        else:
            yield Note((*at, *path), Outcome.CHANGED, f"worker pods have no label {label}", "remove it or replace it")


def _with_our_labels(value: Any, origin: Origin) -> Any:
    """The same, with the names of our labels wherever a label of the other operator has a counterpart."""
    renamed = {label: ours for label, ours in origin.labels.items() if ours}
    if isinstance(value, dict):
        return {renamed.get(key, key): _with_our_labels(item, origin) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_our_labels(item, origin) for item in value]
    if isinstance(value, str):
        for label, ours in renamed.items():
            value = ours if value == label else value.replace(f"['{label}']", f"['{ours}']")
    return value
