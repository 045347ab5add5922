"""Real torchrun processes on a real etcd."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest
from elasticjob_runtime.etcd import connect

from hack.support import eventually
from tests.integration.runtime_torchrun.handler_members import Make, Member

TRAIN = pathlib.Path(__file__).with_name("train.py")
LIGHT_TRAIN = TRAIN.with_name("light_train.py")
"""Without torch."""
RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:1"}
"""torch looks up the name of every peer; a name server that drops such queries would cost 5 s each time."""

PATIENCE = 180.0
"""Timeout in s for whatever starts Python processes with torch, on a machine that does other things too."""


@dataclasses.dataclass(frozen=True)
class Step:
    number: int
    rank: int
    world: int
    pid: int


class Agent:
    """One torchrun."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], log: pathlib.Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """As a node that loses power, except for its worker processes, which torch leaves running."""
        self.process.kill()
        self.process.wait()


class Job:
    """A job of several torchruns, in a directory of its own."""

    def __init__(
        self,
        folder: pathlib.Path,
        endpoint: str,
        *,
        nodes: str,
        max_restarts: int = 5,
        script: pathlib.Path = LIGHT_TRAIN,
    ) -> None:
        self.folder = folder
        self._script = script
        self.endpoint = endpoint
        self.flags = [f"--nnodes={nodes}", "--nproc-per-node=1", f"--max-restarts={max_restarts}"]
        self.prefix = f"/torchrun/{secrets.token_hex(4)}"
        self.agents: list[Agent] = []
        (folder / "steps").mkdir()

    def start(self, name: str, command: Sequence[str] = (), **options: str) -> Agent:
        """`command`: the launcher's module, and what it runs; by default, torchrun with this job's script.

        `options` replace flags of the rendezvous, such as rdzv_endpoint=...
        """
        rendezvous = {
            "rdzv_backend": "etcd-v3",
            "rdzv_endpoint": self.endpoint,
            "rdzv_id": "job",
            "rdzv_conf": f"prefix={self.prefix},lease_ttl=3",
            "local_addr": "127.0.0.1",
            **options,
        }
        given = [f"--{flag.replace('_', '-')}={value}" for flag, value in rendezvous.items()]
        launcher, *script = command or ("torch.distributed.run", str(self._script))
        line = [sys.executable, "-m", launcher, *self.flags, *given, *script]
        environment = {"ELASTICJOB_MEMBER_ID": name, "FOLDER": str(self.folder), "OMP_NUM_THREADS": "1", **RESOLVER}
        agent = Agent(name, line, environment, self.folder / f"{len(self.agents)}-{name}.log")
        self.agents.append(agent)
        return agent

    def steps(self, member: str) -> list[Step]:
        file = self.folder / "steps" / member
        lines = file.read_text().splitlines() if file.exists() else []
        return [Step(*(int(word) for word in line.split())) for line in lines if len(line.split()) == 4]

    def last(self, member: str) -> Step | None:
        steps = self.steps(member)
        return steps[-1] if steps else None

    def train(self, *members: str, without: Sequence[Step | None] = ()) -> list[Step]:
        """Waits until exactly these members train together, in processes other than those of `without`.

        Returns the last step of each.
        """
        old = {step.pid for step in without if step}

        def together() -> list[Step]:
            last = [self.last(member) for member in members]
            steps = [step for step in last if step is not None]
            assert len(steps) == len(members)
            assert {step.world for step in steps} == {len(members)}
            assert not old & {step.pid for step in steps}
            return steps

        return eventually(together, PATIENCE, what=f"{', '.join(members)} train together")

    def reset(self, member: str) -> None:
        """The node loses power: its agent and its worker process are gone."""
        self._signal(member, signal.SIGKILL)

    @contextlib.contextmanager
    def frozen(self, member: str) -> Iterator[None]:
        """The node stops responding: its agent and its worker process are suspended."""
        self._signal(member, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(member, signal.SIGCONT)

    def _signal(self, member: str, number: signal.Signals) -> None:
        agent = next(agent for agent in self.agents if agent.name == member)
        last = self.last(member)
        for pid in (agent.process.pid, *([last.pid] if last else [])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def crash(self, member: str) -> None:
        (self.folder / f"crash-{member}").touch()

    def stop(self) -> None:
        (self.folder / "stop").touch()

    def read(self, key: str) -> dict[str, Any]:
        """A value in etcd; empty where there is none."""
        with contextlib.closing(connect(self.endpoint)) as store:
            found = store.get(f"{self.prefix}/job/{key}")
        return json.loads(found.value) if found else {}

    def end(self) -> None:
        for agent in self.agents:
            agent.process.kill()
            agent.process.wait()
        for file in (self.folder / "steps").iterdir():
            for pid in {step.pid for step in self.steps(file.name)}:
                if _is_ours(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def _is_ours(pid: int) -> bool:
    """Whether this is still a worker process of ours: its pid may have been reused."""
    try:
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(str(script).encode() in command for script in (TRAIN, LIGHT_TRAIN))


@pytest.fixture
def jobs(tmp_path: pathlib.Path, etcd: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Creates jobs, and ends all their processes."""
    made: list[Job] = []

    def job(nodes: str, **options: Any) -> Job:
        folder = tmp_path / f"job-{len(made)}"
        folder.mkdir()
        made.append(Job(folder, etcd, nodes=nodes, **options))
        return made[-1]

    yield job
    for one in made:
        one.end()
    if (report := getattr(request.node, "failed_report", None)) is not None:
        logs = [f"--- {agent.log.name}\n{agent.output[-3000:]}" for one in made for agent in one.agents]
        report.sections.append(("agents", "\n".join(logs)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        item.failed_report = report  # type: ignore[attr-defined]
    return report


@pytest.fixture
def make(etcd: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Creates members of one run, named a, b, c ... in that order."""
    monkeypatch.setenv(*next(iter(RESOLVER.items())))
    run, members, names = secrets.token_hex(4), list[Member](), iter("abcdefgh")

    def member(nodes: tuple[int, int], **conf: Any) -> Member:
        monkeypatch.setenv("ELASTICJOB_MEMBER_ID", next(names))
        members.append(Member(etcd, run, nodes, prefix="/handler", **conf))
        return members[-1]

    yield member
    for one in members:
        one.close()
