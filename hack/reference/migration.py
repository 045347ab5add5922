"""The reference of `elasticjob convert`: what becomes of each field, from the tables that it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elasticjob.convert import dlrover, metadata, pytorchjob, torchelastic, trainjob
from elasticjob.convert.flags import ONLY_DLROVER_RUN, TORCHRUN
from elasticjob.convert.table import Field, Outcome, Table
from elasticjob.convert.template import SERVER_SET

INTRODUCTION = """\
# Fields of other jobs

What [`elasticjob convert`](../guides/migrate.md) makes of each field.
A field stands for everything below it; a field that no table has is reported as unknown.
Fields in the second column are those of the ElasticJob.
"""

ABBREVIATED = {
    "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']": "the annotation of `kubectl apply`",
    "spec.runtimePatches[].trainingRuntimeSpec.template.spec.replicatedJobs[].": "patched job: ",
    "spec.runtimePatches[].trainingRuntimeSpec.template.": "patched JobSet: ",
    "spec.template.spec.replicatedJobs[].template.spec.": "Job: ",
    "spec.template.spec.replicatedJobs[].": "replicated job: ",
}
"""Beginnings of fields that are too long for a table."""

SECTIONS: list[tuple[str, str, Table]] = [
    (
        "TorchElastic ElasticJob",
        f"{' and '.join(f'`{version}`' for version in torchelastic.API_VERSIONS)}. No types of v1beta1 were ever published; it is read as v1alpha1.",
        torchelastic.TABLE,
    ),
    ("PyTorchJob", f"`{pytorchjob.API_VERSION}`.", pytorchjob.TABLE),
    ("TrainJob", f"`{trainjob.API_VERSION}`.", trainjob.TABLE),
    (
        "TrainingRuntime and ClusterTrainingRuntime",
        "What a TrainJob inherits from the runtime that it names: a JobSet with replicated jobs.",
        trainjob.RUNTIME_TABLE,
    ),
    ("DLRover ElasticJob", f"`{dlrover.API_VERSION}`.", dlrover.TABLE),
]

TEMPLATE = """\
## Pod template

The template stays as it is, except:

| in the template | what becomes of it |
|---|---|
| `restartPolicy` of the pod and of the training container | removed: the operator replaces failed worker pods |
| `activeDeadlineSeconds`, `hostname`, `subdomain` | removed, and reported |
| `metadata`, except `labels` and `annotations` | removed |
| labels that start with `elasticjob.dev/` | removed, and reported |
| variables that the operator or elasticrun sets, such as `MASTER_ADDR` and `RANK` | removed from the training container |
| `PET_NNODES`, `PET_NPROC_PER_NODE`, `PET_MAX_RESTARTS` with a value | the same as the flags below |
| a variable that is set twice | the last one stays, the others are reported |
| labels of the other operator, in affinities and in the downward API | replaced by ElasticJob's where there is one, otherwise reported |
| the command of the training container | see below |
| references to variables that no longer have a value, such as `$(MASTER_ADDR)` in `args` | reported |
"""

COMMANDS = """\
## Commands

| the training container runs | in the ElasticJob |
|---|---|
| `torchrun`, `python -m torch.distributed.run` or `launch`, `dlrover-run`, torchelastic's and Bagua's launchers | `elasticrun`, with the flags that stay |
| the same with a path, such as `/opt/venv/bin/torchrun` | `/opt/venv/bin/python -m elasticjob_runtime` |
| `python train.py` | the same, with `procsPerWorker: 1`: the operator starts it under elasticrun |
| `sh -c "..."` | the same, with advice |
| `accelerate launch`, `deepspeed`, any other program | the same, with advice |
| the image's entry point | reported: the operator needs a command. The flags of a TorchElastic job follow `elasticrun` |
"""


def page() -> str:
    parts = [INTRODUCTION, _section("Metadata and status", "The same for all kinds.", _metadata())]
    parts += [
        _section(name, text, [row for row in table if row not in metadata.TABLE]) for name, text, table in SECTIONS
    ]
    return "\n".join([*parts, TEMPLATE, COMMANDS, _flags()])


def _metadata() -> Iterator[Field]:
    """One row for all fields that the API server sets."""
    names = {f"metadata.{name}" for name in SERVER_SET}
    return (row for row in metadata.TABLE if row.path not in names)


def _section(name: str, text: str, table: Iterable[Field]) -> str:
    rows = "\n".join(map(_row, table))
    return f"## {name}\n\n{text}\n\n| field | becomes |\n|---|---|\n{rows}\n"


def _row(row: Field) -> str:
    if row.outcome is Outcome.LOST:
        becomes = "not carried over"
    elif row.outcome is Outcome.IRRELEVANT:
        becomes = "not needed"
    else:
        becomes = f"`{row.to}`" if row.to else "works differently"
    return f"| {_field(row.path)} | {becomes}{_remark(row.why, row.instead)} |"


def _field(path: str) -> str:
    for long, short in ABBREVIATED.items():
        if path == long:
            return short
        if path.startswith(long):
            return f"{short}`{path.removeprefix(long)}`"
    return f"`{path.replace('~', '')}`"


def _remark(why: str, instead: str) -> str:
    """What follows a colon; empty if there is nothing to say."""
    parts = [part.replace("|", "\\|") for part in (why, instead) if part]
    return "".join(f": {part}" if not index else f". {part[:1].upper()}{part[1:]}" for index, part in enumerate(parts))


def _flags() -> str:
    return (
        "### Flags of torchrun\n\nWith `-` or `_`, also abbreviated.\n\n" + _flag_table(TORCHRUN)
        + "\n### Flags that only dlrover-run has\n\n" + _flag_table(ONLY_DLROVER_RUN)
    )  # fmt: skip


def _flag_table(flags: Table) -> str:
    return "| flag | becomes |\n|---|---|\n" + "".join(map(_flag_row, flags))


def _flag_row(flag: Field) -> str:
    name = f"-{flag.path}" if len(flag.path) == 1 else "--" + flag.path.replace("_", "-")
    if flag.outcome is Outcome.CARRIED:
        becomes = f"`{flag.to}`" if flag.to else "stays"
    else:
        becomes = "removed, and reported" if flag.outcome is Outcome.LOST else "removed"
    return f"| `{name}` | {becomes}{_remark(flag.why, flag.instead)} |\n"
