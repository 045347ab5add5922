"""How the command of a worker container runs under the injected runtime: pure functions over its words.

`python train.py` runs as `elasticrun train.py`. Programs that start worker processes themselves run as they are, and so
does everything that is not Python. Few imports: every container start pays for them.
"""

from __future__ import annotations

from collections.abc import Sequence

RUNTIME = "elasticjob_runtime"
LAUNCHERS = frozenset({"elasticrun", "torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "ray"})
"""Programs that start worker processes themselves."""
LAUNCHER_MODULES = frozenset(
    {
        RUNTIME,
        "torch.distributed.run",
        "torch.distributed.launch",
        "torch.distributed.launcher",
        "accelerate.commands.launch",
        "accelerate.commands.accelerate_cli",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
    }
)
"""The same, as modules for `python -m`."""
_INFORMATION = frozenset(
    {"-V", "-VV", "--version", "-h", "--help", "-?", "--help-env", "--help-xoptions", "--help-all"}
)


def is_python(program: str) -> bool:
    """Whether `program`, a name or a path, is a Python interpreter.

    >>> [is_python(each) for each in ("python", "/opt/conda/bin/python3.11", "python3.13t", "pythonize", "ipython")]
    [True, True, True, False, False]
    """
    name = program.rpartition("/")[2]
    return name.startswith("python") and not name[len("python") :].rstrip("t").strip("0123456789.")


def command_of(words: Sequence[str], interpreter: str) -> list[str]:
    """The command to execute for the container's `words`. `interpreter`: the Python that runs the agent if the command
    names none.

    >>> command_of(["elasticrun", "train.py"], "python3")
    ['python3', '-m', 'elasticjob_runtime', 'train.py']
    >>> command_of(["python", "-u", "-m", "my.training", "--lr=1"], "python3")
    ['python', '-m', 'elasticjob_runtime', '-m', 'my.training', '--lr=1']
    >>> command_of(["torchrun", "train.py"], "python3")
    ['torchrun', 'train.py']
    """
    if words[0] == "elasticrun":
        return [interpreter, "-m", RUNTIME, *words[1:]]
    if not is_python(words[0]):
        return list(words)
    arguments = _of_elasticrun(words)
    return list(words) if arguments is None else [words[0], "-m", RUNTIME, *arguments]


def _of_elasticrun(words: Sequence[str]) -> list[str] | None:
    """The arguments with which elasticrun runs `python ...`; None: Python runs it directly."""
    rest = list(words[1:])
    while rest and rest[0] == "-u":  # elasticrun's worker processes are unbuffered anyway
        del rest[0]
    if not rest or rest[0] == "-" or rest[0] in _INFORMATION:
        return None
    if rest[0] == "-m" and len(rest) > 1:
        return None if rest[1] in LAUNCHER_MODULES else rest
    if rest[0].startswith("-"):
        # Other options of Python (-c, -O, -X ...): a program of its own for each worker process.
        return ["--no-python", *words]
    return None if rest[0].rpartition("/")[2] in LAUNCHERS else rest
