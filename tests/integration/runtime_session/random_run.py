"""A long training in place with random faults, compared with an undisturbed one:
`python -m tests.integration.runtime_session.random_run`.

Four agents of one worker process each on loopback. Every few seconds a worker process is killed or stopped, two are
killed at once, an agent is killed with its worker process and replaced, a member leaves or joins, or all leave and
others continue from storage. At the end, the training must be that of one process that nothing disturbed, bit by bit:
a sample that is lost, seen twice, or used after another one shows in the weights. With --streams, the members read the
same samples from that many streams without a length. With --replicas, each member is a replica of two worker processes,
over which the model is sharded (FSDP2), and a kill may hit only one of them.
"""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from hack.chaos import costs
from hack.chaos.members import Job, JobError
from hack.cluster.loopback import Etcd
from tests.integration.runtime.agents import QUICK
from tests.integration.runtime_session.conftest import SETTINGS, Run
from tests.integration.runtime_session.driver import SCRIPT
from tests.integration.runtime_session.session_job import START

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


class RandomJob(Job):
    """Steps take STEP_SECONDS until `hurry`."""

    def __init__(self, endpoint: str, folder: pathlib.Path, epochs: int, streams: int, ranks: int) -> None:
        """ranks: of a replica; 0: without replicas."""
        self._ranks = ranks or 1
        replica = ["--replica-size", "1", "--nproc-per-node", str(ranks)] if ranks else []
        command = [
            *(sys.executable, "-m", "elasticjob_runtime", "--nnodes", f"{LEAST}:{MOST}", "--rdzv-backend", "etcd-v3"),
            *("--rdzv-endpoint", endpoint, "--rdzv-id", "random", "--rdzv-conf", QUICK),
            *("--max-restarts", "100000", *replica, os.fspath(SCRIPT)),
        ]
        settings = {
            **settings_of(ranks), "EPOCHS": str(epochs), "EVERY": "100", "CHECKPOINTS": str(folder / "checkpoints"),
            "SLOW": str(folder / "slow"), "SLOW_SECONDS": str(STEP_SECONDS),
            "OUTPUT": str(folder / "{member}-{local_rank}"), "STREAMS": str(streams),
        }  # fmt: skip
        super().__init__(command, folder, settings)
        (folder / "slow").touch()
        self._hit: set[str] = set()
        """Worker processes that something has happened to."""

    def hurry(self) -> None:
        (self.folder / "slow").unlink()

    @property
    def running(self) -> list[str]:
        return [member for member in self.agents if member not in self.ended]

    @property
    def last_step(self) -> int:
        return max((done.step for process in self.ledger() for done in process.done[-1:]), default=0)

    def healthy(self) -> list[str]:
        """Members that train, and that nothing has happened to."""
        found = collections.Counter(process.member for process in self.training() if process.name not in self._hit)
        return [member for member in self.running if found[member] == self._ranks]

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
        self._hit.update(process.name for process in self.training() if process.member in victims)
        if kind in {Kind.KILL, Kind.TWO, Kind.STOP}:
            hit = self.freeze if kind is Kind.STOP else functools.partial(self.kill, last=chance.random() < 0.5)
            try:
                hit(*victims)
            except JobError:
                return None  # the world has changed since this has looked
        elif kind is Kind.NODE:
            self.reset(*victims)
        elif kind is Kind.LEAVE:
            self.terminate(*victims)
        elif kind is Kind.SUSPEND:
            leaving = self.running
            self.terminate(*leaving)
            for member in leaving:
                self.agents[member].process.wait(END)
        self.start({Kind.NODE: 1, Kind.JOIN: 1, Kind.SUSPEND: AGENTS}.get(kind, 0))
        return kind


def settings_of(ranks: int) -> dict[str, str]:
    return {**SETTINGS, "SHARDED": "1"} if ranks else SETTINGS


def undisturbed(folder: pathlib.Path, epochs: int, ranks: int) -> Run:
    """The same training in one process, without an agent."""
    settings = {**settings_of(ranks), "EPOCHS": str(epochs), "STEP_SECONDS": "0", "OUTPUT": str(folder / "undisturbed")}
    subprocess.run([sys.executable, os.fspath(SCRIPT)], env={**os.environ, **settings}, check=True)
    return Run.read(folder / "undisturbed")


def run(
    folder: pathlib.Path, seconds: float, every: float, chance: random.Random, streams: int = 0, ranks: int = 0
) -> None:
    """Raises AssertionError where the training is not the undisturbed one, and JobError where it does not go on."""
    epochs = int(seconds / STEP_SECONDS / EPOCH) + 2
    struck: list[tuple[float, Kind]] = []
    with Etcd(folder / "etcd") as etcd, RandomJob(etcd.endpoint, folder / "job", epochs, streams, ranks) as job:
        job.start(AGENTS)
        job.wait_training(AGENTS * (ranks or 1), START)
        end = time.monotonic() + seconds
        while time.monotonic() < end and job.last_step < (epochs - 1) * EPOCH:
            time.sleep(every * chance.uniform(0.5, 1.5))
            at = time.monotonic()
            if (kind := job.strike(chance)) is not None:
                struck.append((at, kind))
                print(f"{len(struck)}: at step {job.last_step}, {kind.value}", flush=True)
        job.hurry()
        left = END + STEP_SECONDS * (epochs * EPOCH - job.last_step)  # many, if the machine was too busy for its steps
        codes = {name: job.agents[name].process.wait(left) for name in job.running}
        assert set(codes.values()) == {0}, f"{codes}; logs: {job.folder}"
        ledger = job.ledger()
        commits = costs.commits_of(ledger)
        # Without those that joined after the last step.
        names = [name for name in job.running if any(one.member == name and one.ended for one in ledger)]
        assert names, f"no process took the last step; logs: {job.folder}"
    expected = undisturbed(folder, epochs, ranks)
    for name in names:
        found = Run.read(folder / "job" / f"{name}-0")
        found.assert_same_training(expected)
    usual, last = costs.usual_step(commits), max(commit.time for commit in commits)
    ends = [*(at for at, _ in struck[1:]), last]
    stalls: dict[Kind, list[float]] = {}
    for (at, kind), until in zip(struck, ends, strict=True):
        stalls.setdefault(kind, []).append(costs.longest_pause(commits, at, until) - usual)
    for kind, values in stalls.items():
        median, most = statistics.median(values) * 1000, max(values) * 1000
        print(f"{kind.value}: {len(values)} times, stalls: median {median:.0f} ms, longest {most:.0f} ms")
    worlds = len({commit.generation for commit in commits})
    print(
        f"{len(struck)} faults, {worlds} worlds, {epochs * EPOCH} steps: {', '.join(names)} are equal to the "
        f"undisturbed run; load {os.getloadavg()[0]:.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="of faults (default: 240)")
    parser.add_argument("--every", type=float, default=5.0, help="s between two faults, on average (default: 5)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**31), help="what happens when (default: a random one)"
    )
    parser.add_argument("--streams", type=int, default=0, help="streams that the samples come from (0: a data set)")
    parser.add_argument("--replicas", action="store_true", help="each member is a replica of two worker processes")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="elasticjob-random-"))
    print(f"seed {arguments.seed}, load {os.getloadavg()[0]:.1f}, logs: {folder}", flush=True)
    try:
        ranks = 2 if arguments.replicas else 0
        run(folder, arguments.seconds, arguments.every, random.Random(arguments.seed), arguments.streams, ranks)
    except (AssertionError, JobError) as error:
        print(f"failed: {error}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
