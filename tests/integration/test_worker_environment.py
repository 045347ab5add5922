"""A worker process finds the same environment under elasticrun as under torchrun: one probe under both launchers.

Libraries that read the launcher's variables work under either.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from elasticjob_runtime.contract import Env

from hack.cluster.ports import free_ports
from tests.integration.runtime.small_torch import write_small_torch

pytestmark = pytest.mark.torch

PROBE = pathlib.Path(__file__).with_name("probe_environment.py")
TORCHRUN = "torch.distributed.run"
ELASTICRUN = "elasticjob_runtime"

OURS = "ELASTICJOB_"
"""Prefix of the variables that elasticrun adds."""

CHOSEN = {"TORCHELASTIC_USE_AGENT_STORE"}
"""Each launcher sets it to what it does: True where the agent has the store at MASTER_ADDR, False where rank 0 opens
it."""

AGENTS_OWN = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""For torchrun itself; its worker processes inherit it, and nothing in them reads it."""

ADDED = {"RES_OPTIONS", Env.TRAINER_SERVER_URL, Env.TRAINER_SERVER_TOKEN}
"""Missing under torchrun: without the first, a silent name server delays every start by ten seconds; the others let
scripts with Hugging Face's Trainer report their progress."""

Found = dict[str, dict[str, Any]]
"""`<rank>-<restart>` -> what that worker process found."""


@dataclasses.dataclass(frozen=True)
class Case:
    flags: Sequence[str]
    command: Sequence[str] = (str(PROBE), "--an-argument", "a value")
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    without: Sequence[str] = ()
    """Variables to remove from the test's environment first."""
    workers: Sequence[str] = ("0-0", "1-0")


CASES = {
    "two worker processes": Case(
        flags=["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--role=trainer"],
        without=["OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"],
    ),
    "no flags": Case(flags=[], without=["OMP_NUM_THREADS"], workers=["0-0"]),
    "after a restart": Case(
        flags=["--standalone", "--nproc-per-node=2", "--max-restarts=1"],
        command=[str(PROBE), "fail-once"],
        workers=["0-0", "0-1", "1-0", "1-1"],
    ),
    "variables that the user sets": Case(
        flags=["--standalone", "--nproc-per-node=2"],
        variables={
            "OMP_NUM_THREADS": "7",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "RANK": "9",
            "MASTER_ADDR": "10.0.0.9",
            "MINE": "yes",
        },
    ),
    "flags from the environment": Case(
        flags=[],
        variables={"PET_STANDALONE": "1", "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "2", "PET_ROLE": "reader"},
    ),
    "module with a GPU per process": Case(
        flags=["--standalone", "--nproc-per-node=2", "--virtual-local-rank", "-m"],
        command=["tests.integration.probe_environment", "--an-argument"],
        variables={"CUDA_VISIBLE_DEVICES": "5,7"},
    ),
    "program that is not Python": Case(
        flags=["--standalone", "--nproc-per-node=2", "--no-python"],
        command=["sh", "-c", f'exec "{sys.executable}" "{PROBE}" "$@"', "sh", "--an-argument"],
    ),
    "log files": Case(flags=["--standalone", "--nproc-per-node=2", "--log-dir=logs", "--redirects=3"]),
}


Start = Callable[..., "Run"]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Starts launchers, and ends them all."""
    runs: list[Run] = []

    def started(launcher: str, case: Case, member: int = 0) -> Run:
        runs.append(Run(launcher, case, tmp_path, member))
        return runs[-1]

    yield started
    for run in runs:
        run.process.kill()
        run.process.wait()


NIGHTLY = {"no flags", "log files"}
"""Cases that differ little from another one."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in CASES]
)
def test_the_environment_is_the_same_as_under_torchrun(name: str, start: Start) -> None:
    case = CASES[name]
    runs = [start(launcher, case) for launcher in (TORCHRUN, ELASTICRUN)]  # in parallel: importing torch is slow
    theirs, ours = (run.finish() for run in runs)
    assert sorted(ours) == sorted(theirs) == sorted(case.workers)
    compare(theirs, ours)


@pytest.mark.nightly
def test_the_environment_is_the_same_as_under_torchrun_on_two_members(start: Start, etcd: str) -> None:
    """Two agents: torchrun's over c10d, elasticrun's over etcd."""
    (port,) = free_ports(1)
    flags = ["--nnodes=2", "--nproc-per-node=2", "--max-restarts=3"]
    places = {
        TORCHRUN: [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            "--local-addr=127.0.0.1",
            "--rdzv-id=two-members",
        ],
        ELASTICRUN: [
            "--rdzv-backend=etcd-v3",
            f"--rdzv-endpoint={etcd}",
            "--local-addr=127.0.0.1",
            "--rdzv-id=two-members",
        ],
    }
    found: dict[str, Found] = {}
    for launcher, place in places.items():
        case = Case(flags=[*flags, *place], without=["OMP_NUM_THREADS"])
        members = [start(launcher, case, member) for member in range(2)]
        found[launcher] = {worker: values for member in members for worker, values in member.finish().items()}
    assert sorted(found[ELASTICRUN]) == sorted(found[TORCHRUN]) == ["0-0", "1-0", "2-0", "3-0"]
    compare(found[TORCHRUN], found[ELASTICRUN])


class Run:
    """One launcher with its worker processes."""

    def __init__(self, launcher: str, case: Case, directory: pathlib.Path, member: int) -> None:
        self.reports = directory / f"found-{launcher}"
        self.reports.mkdir(exist_ok=True)
        self.log = directory / f"{launcher}-{member}.log"
        root = pathlib.Path(__file__).parents[2]
        environment = {name: value for name, value in os.environ.items() if name not in case.without}
        # elasticrun need not import torch for the probe, which takes seconds.
        path = f"{write_small_torch(directory)}:{root}" if launcher == ELASTICRUN else str(root)
        environment |= {"PROBE_DIRECTORY": str(self.reports), "PYTHONPATH": path, **case.variables}
        command = [sys.executable, "-m", launcher, *case.flags, *case.command]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self) -> Found:
        code = self.process.wait(120)
        assert code == 0, f"exit code {code}; see {self.log}\n{self.log.read_text()}"
        return {path.stem: json.loads(path.read_text()) for path in self.reports.glob("*.json")}


def compare(theirs: Found, ours: Found) -> None:
    for worker in theirs:
        expected, found = theirs[worker], ours[worker]
        expected_variables, variables = expected.pop("environment"), found.pop("environment")
        assert differences(expected_variables, variables) == {}, f"worker {worker}"
        assert variables.keys() >= {Env.AGENT_SOCKET, Env.ROUND, *ADDED}
        assert found == expected, f"worker {worker}"


def differences(theirs: dict[str, str], ours: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Variable -> (torchrun's value, ours), where they differ and should not."""
    for name in CHOSEN:
        assert {theirs[name], ours[name]} <= {"True", "False"}
    added = {name for name in ours if name.startswith(OURS)}
    names = (theirs.keys() | ours.keys()) - added - CHOSEN - AGENTS_OWN - ADDED - {"PROBE_DIRECTORY"}
    pairs = {name: (normalised(name, theirs.get(name)), normalised(name, ours.get(name))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def normalised(name: str, value: str | None) -> str | None:
    """The value, with what differs from run to run replaced."""
    if value is None:
        return None
    if name == "MASTER_ADDR":
        return socket.gethostbyname(value)
    if name == "MASTER_PORT":
        assert 1024 <= int(value) < 65536
        return "a port"
    if name == "PYTHONPATH":
        return value.rpartition(":")[2]
    if name == "TORCHELASTIC_RUN_ID":
        return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "an id", value)
    if name == "TORCHELASTIC_ERROR_FILE":
        # <directory>/<run id>_<random>/attempt_<restart or round>/<local rank>/error.json
        return "/".join(pathlib.Path(value).parts[-2:])
    return value
