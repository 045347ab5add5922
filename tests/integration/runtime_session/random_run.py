"""A long training in place with random faults, compared with an undisturbed one:
`python -m tests.integration.runtime_session.random_run`.

Four agents of one worker process each on loopback. Every few seconds a worker process is killed or stopped, two are
killed at once, an agent is killed with its worker process and replaced, a member leaves or joins, or all leave and
others continue from storage. At the end, the training must be that of one process that nothing disturbed, bit by bit:
a sample that is lost, seen twice, or used after another one shows in the weights.
"""

from __future__ import annotations

import argparse
import enum
import itertools
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from hack.cluster.loopback import Etcd
from tests.integration.runtime.agents import Agent, is_alive
from tests.integration.runtime_session.conftest import SETTINGS, Run
from tests.integration.runtime_session.driver import SCRIPT
from tests.integration.runtime_session.session_job import START, SessionJob

AGENTS, LEAST, MOST = 4, 2, 5
"""At the start, and at any time; the fifth is a spare or joins."""
EPOCH = 63
"""Steps."""
STEP_SECONDS = 0.05
END = 180.0
"""s for members to leave, or to take the last steps."""


class Kind(enum.Enum):
    KILL = "a worker process is killed"
    TWO = "two worker processes are killed at once"
    NODE = "an agent is killed with its worker process, and another one starts"
    LEAVE = "a member leaves (SIGTERM)"
    STOP = "a worker process is stopped (SIGSTOP)"
    JOIN = "a member joins"
    SUSPEND = "all members leave (SIGTERM), and others continue from storage"


class RandomJob(SessionJob):
    def __init__(self, endpoint: str, directory: pathlib.Path, epochs: int) -> None:
        settings = {"EPOCHS": str(epochs), "SLOW_SECONDS": str(STEP_SECONDS), "EVERY": "100"}
        super().__init__(endpoint, directory, environment={**settings, "CHECKPOINTS": str(directory / "checkpoints")})
        self._hit: set[int] = set()
        """Worker processes that something has happened to."""
        self._ended: set[str] = set()
        """Members whose agents were killed or asked to leave."""

    def begin(self, count: int = 1) -> None:
        for _ in range(count):
            self.start(f"m{len(self.agents)}", "--max-restarts=100000", nnodes=f"{LEAST}:{MOST}")

    @property
    def running(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.name not in self._ended]

    @property
    def last_step(self) -> int:
        return max((self.steps(agent.name)[-1:] or [(0, 0)])[0][0] for agent in self.agents)

    def healthy(self) -> list[Agent]:
        """Members that have taken the newest step, or the one before it, in processes that nothing has happened to."""
        last = self.last_step
        return [
            agent
            for agent in self.running
            if (self.steps(agent.name)[-1:] or [(0, 0)])[0][0] >= max(last - 1, 1)
            and (pid := self.pids(agent.name)[-1]) not in self._hit
            and is_alive(pid)
        ]

    def possible(self, spare: int) -> list[Kind]:
        """What can happen that the training must survive. `spare`: healthy members but one, which has the state."""
        return [
            *([Kind.KILL, Kind.NODE, Kind.STOP] if spare >= 1 else []),
            *([Kind.TWO] if spare >= 2 else []),
            *([Kind.LEAVE] if spare >= 1 and len(self.running) > LEAST else []),
            *([Kind.JOIN, Kind.JOIN] if len(self.running) < MOST else []),  # as often as members leave
            *([Kind.SUSPEND] if spare >= 0 else []),
        ]

    def strike(self, chance: random.Random) -> Kind | None:
        """None: nothing can happen now."""
        healthy = self.healthy()
        if not (kinds := self.possible(len(healthy) - 1)):
            return None
        kind = chance.choice(kinds)
        victims = chance.sample(healthy, {Kind.JOIN: 0, Kind.TWO: 2, Kind.SUSPEND: len(healthy)}.get(kind, 1))
        if kind is Kind.SUSPEND:
            victims = self.running
        pids = [self.pids(agent.name)[-1] for agent in victims if self.pids(agent.name)]
        self._hit.update(pids)
        if kind in {Kind.NODE, Kind.LEAVE, Kind.SUSPEND}:
            self._ended.update(agent.name for agent in victims)
            for agent in victims:
                agent.signal(signal.SIGKILL if kind is Kind.NODE else signal.SIGTERM)
        if kind is Kind.SUSPEND:
            for agent in victims:
                agent.exit_code(END)
        if kind in {Kind.KILL, Kind.TWO, Kind.NODE, Kind.STOP}:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP if kind is Kind.STOP else signal.SIGKILL)
        self.begin({Kind.NODE: 1, Kind.JOIN: 1, Kind.SUSPEND: AGENTS}.get(kind, 0))
        return kind

    def first_commits(self) -> list[float]:
        """When each step was first committed, in the order of the steps."""
        first: dict[int, float] = {}
        for path in self.directory.glob("*.steps"):
            for at, step, _ in (line.split() for line in path.read_text().splitlines() if line.count(" ") == 2):
                first[int(step)] = min(float(at), first.get(int(step), float(at)))
        return [first[step] for step in sorted(first)]


def stalls(commits: Sequence[float], faults: Sequence[float]) -> list[float]:
    """What each fault cost: the longest pause between two steps until the next one, less a usual one, s."""
    pauses = [(after, after - before) for before, after in itertools.pairwise(sorted(commits))]
    usual = statistics.median(pause for _, pause in pauses)
    ends = [*faults[1:], float("inf")]
    return [
        max((pause for at, pause in pauses if begin <= at < end), default=usual) - usual
        for begin, end in zip(faults, ends, strict=True)
    ]


def undisturbed(folder: pathlib.Path, epochs: int) -> Run:
    """The same training in one process, without an agent."""
    settings = {**SETTINGS, "EPOCHS": str(epochs), "STEP_SECONDS": "0", "OUTPUT": str(folder / "undisturbed")}
    subprocess.run([sys.executable, os.fspath(SCRIPT)], env={**os.environ, **settings}, check=True)
    return Run.read(folder / "undisturbed")


def run(folder: pathlib.Path, seconds: float, every: float, chance: random.Random) -> None:
    """Raises AssertionError where the training is not the undisturbed one."""
    epochs = int(seconds / STEP_SECONDS / EPOCH) + 2
    struck: list[tuple[float, Kind]] = []
    (folder / "job").mkdir()
    with Etcd(folder / "etcd") as etcd:
        job = RandomJob(etcd.endpoint, folder / "job", epochs)
        try:
            job.begin(AGENTS)
            job.wait_for_world(AGENTS, *(agent.name for agent in job.agents), timeout=START)
            end = time.monotonic() + seconds
            while time.monotonic() < end and job.last_step < (epochs - 1) * EPOCH:
                time.sleep(every * chance.uniform(0.5, 1.5))
                at = time.monotonic()
                if (kind := job.strike(chance)) is not None:
                    struck.append((at, kind))
                    print(f"{len(struck)}: at step {job.last_step}, {kind.value}", flush=True)
            job.hurry()
            codes = {agent.name: agent.exit_code(END) for agent in job.running}
            assert set(codes.values()) == {0}, f"{codes}\n{job.logs}"
            costs = stalls(job.first_commits(), [at for at, _ in struck])
        finally:
            job.close()
    expected = undisturbed(folder, epochs)
    for name in codes:
        Run.read(folder / "job" / f"{name}-0").assert_same_training(expected)
    for each in Kind:
        values = [cost for cost, (_, kind) in zip(costs, struck, strict=True) if kind is each]
        if values:
            median, most = statistics.median(values) * 1000, max(values) * 1000
            print(f"{each.value}: {len(values)} times, stalls: median {median:.0f} ms, longest {most:.0f} ms")
    print(f"{len(struck)} faults, {epochs * EPOCH} steps: {', '.join(codes)} are equal to the undisturbed run")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="of faults (default: 240)")
    parser.add_argument("--every", type=float, default=5.0, help="s between two faults, on average (default: 5)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**31), help="what happens when (default: a random one)"
    )
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="elasticjob-random-"))
    print(f"seed {arguments.seed}, load {os.getloadavg()[0]:.1f}, logs: {folder}", flush=True)
    try:
        run(folder, arguments.seconds, arguments.every, random.Random(arguments.seed))
    except AssertionError as error:
        print(f"failed: {error}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
