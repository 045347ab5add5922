"""`train`: a Python function as an elastic job."""

from __future__ import annotations

import builtins
import dis
import inspect
import json
import shlex
import textwrap
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticjob.decisions.job_request import shows_options
from elasticjob.errors import UsageError
from elasticjob.sdk.client import ElasticJobClient

if TYPE_CHECKING:
    from elasticjob.sdk.job import Job

MAX_SCRIPT = 100_000
"""Longest script, in bytes: it travels in the pod's command, and Linux limits an argument to 128 KiB."""
FOLDER = "/tmp/elasticjob/${ELASTICJOB_UID:-.}"  # noqa: S108 a read-only root file system still has /tmp
"""For the script, in the container, or on this machine, which jobs share."""


@shows_options
def train(
    func: Callable[..., object],
    args: Mapping[str, Any] | None = None,
    *,
    image: str,
    name: str | None = None,
    packages: Sequence[str] = (),
    client: ElasticJobClient | None = None,
    **options: Any,
) -> Job:
    """Runs `func(**args)` in every worker process of a new job.

    The source of `func` is sent, so it must import what it uses itself, and cannot use variables outside it. `args`:
    what JSON can hold. `packages`: installed with pip before the training starts. `options`: the
    fields of `elasticjob.JobOptions`.

        def train_bert(lr):
            import torch
            ...

        job = elasticjob.train(train_bert, {"lr": 0.1}, image="my-company/train:1.4", workers=(2, 4), gpus=8)
    """
    client = client or ElasticJobClient()
    command = command_of(script_of(func, args or {}), packages=packages)
    return client.submit(name or name_of(func), image=image, command=command, **options)


def name_of(func: Callable[..., object]) -> str:
    """The name of a job for `func`: unique, so that it can be trained again."""
    base = getattr(func, "__name__", "train").lower().replace("_", "-").strip("-")[:38] or "train"
    return f"{base if base[0].isalnum() else 'train'}-{uuid.uuid4().hex[:6]}"


def script_of(func: Callable[..., object], args: Mapping[str, Any]) -> str:
    """A script that defines and calls the function. Raises UsageError."""
    try:
        source = textwrap.dedent(inspect.getsource(func))
    except (OSError, TypeError) as error:
        raise UsageError(f"The source of {func!r} is not available: define it in a file or a notebook cell.") from error
    if not source.startswith("def "):
        raise UsageError(f"train takes a plain function, not {source.splitlines()[0].strip()!r}.")
    try:
        inspect.signature(func).bind(**args)
        given = json.dumps(dict(args))
    except TypeError as error:
        raise UsageError(f"{func.__name__} cannot be called with these arguments: {error}.") from error
    script = f"import json\n\n{source}\n\nif __name__ == '__main__':\n    {func.__name__}(**json.loads({given!r}))\n"
    if missing := func.__code__.co_freevars or _undefined(script):
        raise UsageError(
            f"{func.__name__} uses what is defined outside it, which worker pods lack: {', '.join(missing)}.",
            "Import modules inside the function, and pass values as arguments: train(func, {...})",
        )
    return script


def _undefined(script: str) -> list[str]:
    """Names that a script reads from its module, but that nothing in it defines."""
    read, known = set[str](), {*dir(builtins), "__name__", "__file__", "__annotations__"}
    codes = [compile(script, "train.py", "exec", dont_inherit=True)]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                read.add(instruction.argval)
            elif instruction.opname in ("STORE_NAME", "STORE_GLOBAL", "IMPORT_STAR"):
                known.add(instruction.argval)
    return sorted(read - known)


def command_of(script: str, arguments: Sequence[str] = (), *, packages: Sequence[str] = ()) -> list[str]:
    """A command of a pod that writes the script to a file, so that tracebacks show its lines, and trains with it.
    Raises UsageError."""
    size = len(script.encode())
    if size > MAX_SCRIPT:
        raise UsageError(f"The script is too long ({size} of {MAX_SCRIPT} bytes): build it into the image instead.")
    pip = "python3 -m pip install --quiet --disable-pip-version-check"
    install = f"{pip} {shlex.join(packages)} && " if packages else ""
    shell = (
        f'folder="{FOLDER}" && mkdir -p "$folder" && printf %s "$0" > "$folder/train.py" && {install}'
        'exec python3 -m elasticjob_runtime "$folder/train.py" "$@"'
    )
    return ["sh", "-c", shell, script, *arguments]
