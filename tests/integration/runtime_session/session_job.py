"""A job with real agents, whose scripts have a session."""

from __future__ import annotations

import os
import pathlib
import re
import sys
from collections.abc import Mapping

from hack.support import eventually
from tests.integration.runtime.agents import QUICK, SOURCE, Agent, Job
from tests.integration.runtime_session.conftest import SETTINGS, Run
from tests.integration.runtime_session.driver import SCRIPT

LONG = {**SETTINGS, "EPOCHS": "3", "STEP_SECONDS": "0"}
STEPS = 3 * 63

START = 120.0
"""s for agents to import torch on a busy machine."""
FSDP = "torch.distributed.fsdp"
"""To preload, of scripts that shard their model."""


class SessionJob(Job):
    """Agents whose scripts have a session. Steps take 0.6 s until `hurry`, so that slow members can join.

    preload: of the zygote, which learns no imports then: that takes as long as all others.
    """

    def __init__(
        self,
        endpoint: str,
        directory: pathlib.Path,
        *,
        python: str = sys.executable,
        script: pathlib.Path = SCRIPT,
        environment: Mapping[str, str] | None = None,
        preload: str = "torch",
    ) -> None:
        super().__init__(endpoint, directory)
        self.program = (python,)
        self._script, self._environment, self._preload = script, environment or {}, preload
        (directory / "slow").touch()

    def hurry(self) -> None:
        (self.directory / "slow").unlink(missing_ok=True)

    def start(self, name: str, *flags: str, nnodes: str = "2:4", conf: str = QUICK, **environment: str) -> Agent:  # type: ignore[override]
        given = {
            **LONG, "SLOW": str(self.directory / "slow"), "SLOW_SECONDS": "0.6",
            "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "OUTPUT": str(self.directory / f"{name}-{{local_rank}}"),
            **self._environment, **environment,
        }  # fmt: skip
        common = ("--start-method=zygote", f"--preload={self._preload}", "--max-restarts=20")
        return super().start(
            name, *common, *flags, nnodes=nnodes, conf=conf, script=[os.fspath(self._script)], environment=given
        )

    def pids(self, name: str, local_rank: int = 0) -> list[int]:
        """All worker processes that this member ever had for a local rank, in order."""
        path = self.directory / f"{name}-{local_rank}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def steps(self, name: str, local_rank: int = 0) -> list[tuple[int, int]]:
        """(committed steps, world size), in order."""
        path = self.directory / f"{name}-{local_rank}.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), int(size)) for _, step, size in (line.split() for line in lines if line.count(" ") == 2)]

    def last_step(self, *names: str) -> int:
        """That all of these members have taken."""
        return min(max(self.steps(name), default=(0, 0))[0] for name in names)

    def wait_for_step(self, at: int, *names: str) -> None:
        eventually(lambda: self.last_step(*names) >= at, START, 0.005, lambda: f"step {at}\n{self.logs}")

    def continued_after(self, name: str, lines: int) -> int:
        """The step after which it continued, once it had taken so many."""
        return eventually(lambda: self.steps(name)[lines:], START, what=f"{name} trains again\n{self.logs}")[0][0] - 1

    @property
    def snapshot_interval(self) -> int:
        """The largest one of any process, in steps. Its script logs it at level INFO."""
        return max((int(found) for found in re.findall(r"in (\d+) steps", self.logs)), default=1)

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
