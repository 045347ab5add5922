"""From the objects of a file to ElasticJobs, with an account of every field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from elasticjob_api import API_VERSION, KIND, ElasticJob, InvalidJobError

from elasticjob.convert import dlrover, metadata, pytorchjob, torchelastic, trainjob
from elasticjob.convert.draft import Draft, check_names
from elasticjob.convert.paths import Path, get
from elasticjob.convert.table import ConvertError, Note, Outcome, Table, account
from elasticjob.decisions.documents import Document

Kind = tuple[str, str]
"""apiVersion and kind."""

CONVERTERS: dict[Kind, tuple[Callable[[Mapping[str, Any], Draft], None], Table]] = {
    **dict.fromkeys(torchelastic.KINDS, (torchelastic.convert, torchelastic.TABLE)),
    (pytorchjob.API_VERSION, pytorchjob.KIND): (pytorchjob.convert, pytorchjob.TABLE),
    (dlrover.API_VERSION, dlrover.KIND): (dlrover.convert, dlrover.TABLE),
}
"""Kinds that one document describes. A TrainJob takes two."""
TRAIN_JOB: Kind = (trainjob.API_VERSION, trainjob.KIND)
RUNTIMES: frozenset[Kind] = frozenset((trainjob.API_VERSION, kind) for kind in trainjob.RUNTIME_KINDS)
OURS: Kind = (API_VERSION, KIND)
SUPPORTED = "PyTorchJob, TrainJob, and the ElasticJobs of TorchElastic and DLRover"

_OTHER_JOBS = frozenset(
    {
        "ElasticBatchJob", "JAXJob", "Job", "JobSet", "MPIJob", "MXJob", "PaddleJob", "RayCluster", "RayJob", "TFJob",
        "XGBoostJob",
    }
)  # fmt: skip
"""Kinds that are jobs, but not ones that can be converted."""


@dataclasses.dataclass(frozen=True)
class Converted:
    """One object of the output."""

    manifest: Document
    source: str
    """The object of the input, as in PyTorchJob/bert."""
    notes: tuple[Note, ...] = ()
    """What became of each field. Empty: the object is not a job and stays as it is."""


def describe(document: Mapping[str, Any]) -> str:
    """As kubectl names it: PyTorchJob/bert."""
    name = get(document, ("metadata", "name")) or get(document, ("metadata", "generateName")) or "?"
    return f"{document.get('kind')}/{name}"


def kind_of(document: Mapping[str, Any]) -> Kind:
    return str(document.get("apiVersion")), str(document.get("kind"))


def convert_all(documents: Sequence[Document], runtimes: Iterable[Document] = (), *, name: str = "") -> list[Converted]:
    """Converts every job, and keeps other objects. `runtimes`: TrainingRuntimes from elsewhere; `name`: a new name for
    the job, if there is one only. Raises ConvertError."""
    known = [runtime for runtime in (*runtimes, *documents) if kind_of(runtime) in RUNTIMES]
    jobs = [document for document in documents if kind_of(document) in CONVERTERS or kind_of(document) == TRAIN_JOB]
    if name and len(jobs) > 1:
        raise ConvertError(f"--name is for one job, and the input has {len(jobs)}")
    if not jobs:
        raise ConvertError(_no_job(documents))
    names = {describe(job): f"ElasticJob/{name or get(job, ('metadata', 'name'))}" for job in jobs}
    return [_converted(document, known, names, name) for document in documents if kind_of(document) not in RUNTIMES]


def _no_job(documents: Sequence[Document]) -> str:
    if any(kind_of(document) == OURS for document in documents):
        return f"{describe(documents[0])} is an ElasticJob of {API_VERSION} already: there is nothing to convert"
    kinds = sorted({f"{kind} ({version})" for version, kind in map(kind_of, documents)})
    return f"cannot convert {', '.join(kinds)}: only {SUPPORTED} can be converted"


def _converted(document: Document, runtimes: list[Document], names: Mapping[str, str], name: str) -> Converted:
    kind = kind_of(document)
    source = describe(document)
    try:
        if kind in CONVERTERS or kind == TRAIN_JOB:
            return _convert(document, source, runtimes, name)
    except ConvertError as error:
        raise ConvertError(f"{source}: {error}") from error
    if kind[1] in _OTHER_JOBS or (kind[1] == KIND and kind != OURS):
        raise ConvertError(
            f"{source} ({kind[0]}) cannot be converted: only {SUPPORTED} can be. Remove it from the input"
        )
    return _other(document, source, names)


def _convert(document: Document, source: str, runtimes: list[Document], name: str) -> Converted:
    check_names(document)
    draft, runtime = Draft(), None
    if kind_of(document) == TRAIN_JOB:
        table, runtime = trainjob.TABLE, _runtime_of(document, runtimes)
        trainjob.convert(document, runtime, draft)
    else:
        convert, table = CONVERTERS[kind_of(document)]
        convert(document, draft)
    metadata.convert_metadata(document, draft, name=name)
    notes = account(document, table, [note for note in draft.notes if note.path[0] != trainjob.RUNTIME])
    if runtime:
        own = [_of(runtime, note, note.path[1:]) for note in draft.notes if note.path[0] == trainjob.RUNTIME]
        notes += [_of(runtime, note, note.path) for note in account(runtime, trainjob.RUNTIME_TABLE, own)]
    return Converted(_checked(draft), source, tuple(notes))


def _of(runtime: Document, note: Note, path: Path) -> Note:
    return dataclasses.replace(note, path=path, document=describe(runtime))


def _runtime_of(job: Document, runtimes: list[Document]) -> Document:
    wanted = get(job, ("spec", "runtimeRef", "name"))
    kind = str(get(job, ("spec", "runtimeRef", "kind")) or trainjob.RUNTIME_KINDS[0])
    if not wanted:
        raise ConvertError("spec.runtimeRef.name is missing")
    for runtime in runtimes:
        if runtime.get("kind") == kind and get(runtime, ("metadata", "name")) == wanted:
            check_names(runtime)
            return runtime
    raise ConvertError(
        f"it needs the {kind} {wanted}, which is not in the input: save it with `kubectl get {kind.lower()} {wanted} "
        f"-o yaml > runtime.yaml`, and add --runtime runtime.yaml"
    )


def _checked(draft: Draft) -> Document:
    """The manifest. Raises ConvertError if our own models reject it."""
    manifest = draft.manifest()
    try:
        ElasticJob.parse({**manifest, "metadata": {"name": "unnamed", "namespace": "default", **manifest["metadata"]}})
    except InvalidJobError as error:
        raise ConvertError(f"the ElasticJob would be invalid: {error}") from error
    return manifest


def _other(document: Document, source: str, names: Mapping[str, str]) -> Converted:
    """An object that is not a job. An autoscaler of a job that is converted scales the ElasticJob."""
    scales = document.get("kind") == "HorizontalPodAutoscaler"
    kind, name = (get(document, ("spec", "scaleTargetRef", key)) for key in ("kind", "name"))
    new = names.get(f"{kind}/{name}") if scales else None
    if new is None:
        return Converted(document, source)
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": new.partition("/")[2]}
    manifest = {**document, "spec": {**document["spec"], "scaleTargetRef": reference}}
    note = Note(("spec", "scaleTargetRef"), Outcome.CARRIED, f"it scales {new}")
    return Converted(manifest, source, (note,))
