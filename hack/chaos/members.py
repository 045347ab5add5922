"""A job of several agents on this machine, and the faults to inject into it. Ends only processes that it started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hack.chaos.costs import Change, change, commits_of, newest_world
from hack.chaos.ledger import LedgerReader, Process
from hack.cluster.output import tail
from hack.cluster.processes import Child
from hack.images.recipe import ROOT
from hack.support import within

if TYPE_CHECKING:
    from typing import Self

MARK = "ELASTICJOB_TEST_NODE"
"""Environment variable that marks all processes of an agent, even those whose parent has ended."""
POLL_INTERVAL = 0.1
"""s. What is measured is in the logs: reading them must not take processor time from the job."""
STEADY_STEPS = 25
Ready = Callable[[], bool]


class JobError(Exception):
    """The job did not reach the state to measure."""


class Job:
    """Agents are named agent-0, agent-1 ... A context manager."""

    def __init__(
        self, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], *, ready: Ready | None = None
    ) -> None:
        """`command` starts an agent, with the script. In the values of `environment`, `{member}` stands for an agent's
        name. `ready`: whether further agents can start after the first."""
        self._command, self._ready = list(command), ready
        self.folder = folder
        self.environment = dict(environment)
        """Of the agents that start from now on."""
        self._token = secrets.token_hex(6)
        self.agents: dict[str, Child] = {}
        self.ended: set[str] = set()
        """Members that this class ended."""
        (folder / "ledger").mkdir(parents=True)
        self._reader = LedgerReader(folder / "ledger")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member, agent in self.agents.items():
            within(10, lambda member=member: not self._kill_all(member), POLL_INTERVAL)  # type: ignore[misc]  # it may be starting a worker process right now
            agent.stop(grace=0)

    # -- changes. Each returns when it happened (monotonic), and which worker processes it hit

    def start(self, count: int) -> float:
        """Starts this many more agents. Returns when."""
        now = time.monotonic()
        for _ in range(count):
            self._start_one()
        return now

    def kill(self, *members: str, last: bool = False) -> tuple[float, list[str]]:
        """Kills the members' worker processes at once; `last`: only the last rank of each."""
        return self._signal_workers(signal.SIGKILL, *members, last=last)

    def freeze(self, member: str) -> tuple[float, list[str]]:
        """Stops the member's worker process, but not its agent."""
        return self._signal_workers(signal.SIGSTOP, member)

    def reset(self, member: str) -> tuple[float, list[str]]:
        """Kills the agent and everything it started at once."""
        victims = [process.name for process in self._processes_of(member)]
        self.ended.add(member)
        return self._signal_all(member, signal.SIGKILL), victims

    def silence(self, member: str) -> tuple[float, list[str]]:
        """Stops the agent and everything it started at once."""
        victims = [process.name for process in self._processes_of(member)]
        return self._signal_all(member, signal.SIGSTOP), victims

    def terminate(self, *members: str) -> float:
        """Returns when."""
        now = time.monotonic()
        for member in members:
            self.ended.add(member)
            self.agents[member].process.send_signal(signal.SIGTERM)
        return now

    # -- observations

    def members(self) -> list[str]:
        """Those that train, in the order of their start."""
        return sorted({process.member for process in self.training()})

    def training(self) -> list[Process]:
        """The processes of the newest generation, if it is complete."""
        return newest_world(self.ledger())

    def ledger(self) -> list[Process]:
        """Every worker process so far."""
        return self._reader.read()

    def wait_change(
        self, event: float, limit: float, *, world: int | None = None, victims: list[str] | None = None
    ) -> Change | None:
        """What the event cost until processes trained in a later generation. None: they did not within `limit` s."""
        found: list[Change] = []

        def changed() -> bool:
            cost = change(commits_of(self.ledger()), event, world=world, victims=victims or ())
            found.extend([cost] if cost is not None else [])
            return bool(found)

        return found[0] if within(limit, changed, POLL_INTERVAL) else None

    def wait_training(self, world: int, limit: float) -> None:
        """Waits until a world of this size has trained a while. Raises JobError."""

        def trains() -> bool:
            if gone := next(
                (name for name, agent in self.agents.items() if name not in self.ended and not agent.alive()), None
            ):
                raise JobError(f"{gone} ended unexpectedly: {tail(self.agents[gone].log, 1)}")
            found = self.training()
            return len(found) == world and _steps_together(found) >= world * STEADY_STEPS

        if not within(limit, trains, POLL_INTERVAL):
            raise JobError(f"no training with {world} worker processes after {limit:g} s")

    def _processes_of(self, *members: str) -> list[Process]:
        """Their worker processes that train."""
        return [process for process in self.training() if process.member in members]

    # -- processes

    def _start_one(self) -> None:
        member = f"agent-{len(self.agents)}"
        given = {key: value.replace("{member}", member) for key, value in self.environment.items()}
        environment = {
            # of this checkout, also if the virtual environment was made for another one
            "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer-runtime' / 'src'}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "ELASTICJOB_MEMBER_ID": member,
            "LEDGER": str(self.folder / "ledger"),
            MARK: self._mark(member),
            **given,
        }
        self.agents[member] = Child(self._command, self.folder / f"{member}.log", environment)
        if len(self.agents) == 1 and self._ready is not None:
            self.agents[member].wait_until(self._ready, timeout=60)

    def _mark(self, member: str) -> str:
        return f"{self._token}-{member}"

    def _signal_workers(self, number: signal.Signals, *members: str, last: bool = False) -> tuple[float, list[str]]:
        victims = sorted(self._processes_of(*members), key=lambda process: process.rank)
        if last:
            victims = list({process.member: process for process in victims}.values())
        if {process.member for process in victims} != set(members):
            raise JobError(f"{members} do not all train")
        if gone := [one for one in victims if one.process not in marked(MARK, self._mark(one.member))]:
            raise JobError(f"{gone[0].name} has ended")
        now = time.monotonic()
        for one in victims:
            try:
                os.kill(one.process, number)
            except ProcessLookupError:
                raise JobError(f"{one.name} has ended") from None
        return now, [one.name for one in victims]

    def _kill_all(self, member: str) -> list[int]:
        """Returns the pids that are still running. Dead processes have no environment, so the next call skips them."""
        self._signal_all(member, signal.SIGKILL)
        return marked(MARK, self._mark(member))

    def _signal_all(self, member: str, number: signal.Signals) -> float:
        found = sorted(
            marked(MARK, self._mark(member)), key=lambda pid: pid != self.agents[member].pid
        )  # the agent first
        now = time.monotonic()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return now


def _steps_together(world: Sequence[Process]) -> int:
    newest = world[0].done[-1].generation
    return sum(done.generation == newest for process in world for done in process.done)


def marked(variable: str, value: str, proc: Path = Path("/proc")) -> list[int]:
    """Pids of the processes that were started with this in their environment."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
