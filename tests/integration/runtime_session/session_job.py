"""A job with real agents, whose scripts have a session."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

from elasticjob_runtime.contract import Env

from hack.support import eventually
from tests.integration.runtime.agents import QUICK, SOURCE, Agent, Job
from tests.integration.runtime_session.conftest import SETTINGS, Run
from tests.integration.runtime_session.driver import SCRIPT

LONG = {**SETTINGS, "EPOCHS": "6"}
STEPS = 6 * 63

START = 120.0
"""s for agents to import torch on a busy machine."""


class SessionJob(Job):
    """Agents whose scripts have a session. Steps take 0.3 s until `hurry`, so that slow members can join."""

    def __init__(
        self,
        endpoint: str,
        directory: pathlib.Path,
        *,
        python: str = sys.executable,
        script: pathlib.Path = SCRIPT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(endpoint, directory)
        self._python, self._script, self._environment = python, script, environment or {}
        (directory / "slow").touch()

    def successor(self, directory: pathlib.Path) -> SessionJob:
        """Another job with the same script."""
        return SessionJob(
            self.endpoint, directory, python=self._python, script=self._script, environment=self._environment
        )

    def hurry(self) -> None:
        (self.directory / "slow").unlink(missing_ok=True)

    def start(self, name: str, *flags: str, nnodes: str = "2:4", conf: str = QUICK, **environment: str) -> Agent:  # type: ignore[override]
        log = self.directory / f"{name}-{len(self.agents)}.log"
        events = log.with_suffix(".events")
        events.touch()
        command = [
            *(self._python, "-m", "elasticjob_runtime", "--nnodes", nnodes, "--rdzv-backend", "etcd-v3"),
            *("--rdzv-endpoint", self.endpoint, "--rdzv-id", self.run_id, "--rdzv-conf", conf),
            *("--max-restarts", "20", "--events", str(events), *flags, os.fspath(self._script)),
        ]
        given = {
            **LONG, "SLOW": str(self.directory / "slow"), "SLOW_SECONDS": "0.3",
            "PYTHONPATH": str(SOURCE), Env.MEMBER_ID: name, "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "OUTPUT": str(self.directory / f"{name}-{{local_rank}}"),
            **self._environment, **environment,
        }  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **given}
            )
        agent = Agent(name, process, log, events, log.with_suffix(".termination"))
        self.agents.append(agent)
        return agent

    def pids(self, name: str, local_rank: int = 0) -> list[int]:
        """All worker processes that this member ever had for a local rank, in order."""
        path = self.directory / f"{name}-{local_rank}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def steps(self, name: str, local_rank: int = 0) -> list[tuple[int, int]]:
        """(committed steps, world size), in order."""
        path = self.directory / f"{name}-{local_rank}.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), int(size)) for _, step, size in (line.split() for line in lines if line.count(" ") == 2)]

    def wait_for_world(self, size: int, *members: str, timeout: float = 60.0) -> None:
        """Each of these members has taken three steps in a row in a world of `size`."""

        def trains() -> bool:
            for name in members:
                last = [world for _, world in self.steps(name)[-3:]]
                assert last == [size] * 3, f"{name}: {last}"
            return True

        eventually(trains, timeout, what=f"a world of {size}; logs:\n{self.logs}")

    def assert_finished(self, undisturbed: Run, *members: str, local_ranks: int = 1) -> None:
        self.hurry()
        for agent in self.agents:
            if agent.name in members:
                assert agent.exit_code(120.0) == 0, self.logs
        for name in members:
            for rank in range(local_ranks):
                run = Run.read(self.directory / f"{name}-{rank}")
                run.assert_same_training(undisturbed)
                assert run.facts["committed"] == STEPS
