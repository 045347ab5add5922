"""What the command of a worker container runs as under the injected runtime."""

from __future__ import annotations

import pytest
from elasticjob_runtime.commands import command_of, is_python

AGENT = ["-m", "elasticjob_runtime"]

SUPERVISED = {
    "elasticrun train.py --lr=1": "train.py --lr=1",
    "elasticrun --max-restarts=3 -m pkg": "--max-restarts=3 -m pkg",
    "python train.py --lr=1": "train.py --lr=1",
    "python3 /app/train.py": "/app/train.py",
    "/opt/conda/bin/python3.11 train.py": "train.py",
    "python -u train.py -u": "train.py -u",
    "python -u -u -m my.training --size 3": "-m my.training --size 3",
    "python -m my.training": "-m my.training",
    "python -O train.py": "--no-python python -O train.py",
    "python -u -X dev train.py": "--no-python python -u -X dev train.py",
    "python -c print(1)": "--no-python python -c print(1)",
}
AS_IT_IS = [
    "torchrun train.py",
    "torchrun --rdzv-backend=c10d train.py",
    "python -m torch.distributed.run train.py",
    "python -m torch.distributed.launch train.py",
    "python -m elasticjob_runtime train.py",
    "python -m accelerate.commands.launch train.py",
    "python /usr/bin/torchrun train.py",
    "python3 -u /opt/conda/bin/accelerate launch train.py",
    "/usr/local/bin/elasticrun train.py",
    "accelerate launch train.py",
    "sh -c exec elasticrun train.py",
    "./train.sh",
    "python",
    "python -",
    "python --version",
    "pythonize train.py",
    "ipython train.py",
]


@pytest.mark.parametrize(("words", "arguments"), SUPERVISED.items())
def test_elasticrun_runs_python_commands(words: str, arguments: str) -> None:
    interpreter = "/usr/bin/python3" if words.startswith("elasticrun") else words.split(maxsplit=1)[0]
    assert command_of(words.split(), "/usr/bin/python3") == [interpreter, *AGENT, *arguments.split()]


@pytest.mark.parametrize("words", AS_IT_IS)
def test_launchers_and_other_programs_run_as_they_are(words: str) -> None:
    assert command_of(words.split(), "/usr/bin/python3") == words.split()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("python", True),
        ("python3", True),
        ("python3.13t", True),
        ("/opt/conda/bin/python", True),
        ("python3-config", False),
        ("pythonw.exe", False),
        ("bpython", False),
        ("/opt/python/train", False),
        ("", False),
    ],
)
def test_interpreters_are_told_by_their_names(program: str, expected: bool) -> None:
    assert is_python(program) is expected
