"""Runs the quick start: agents train, one worker process is killed, one agent joins, and training finishes. First with
a script whose processes restart at each change, then with one whose processes continue."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from hack.embedded_etcd.server import EmbeddedServer
from hack.quickstart.agents import Agent
from hack.quickstart.timeline import Change, Kind, ProcessLine, Seen, StepLine, problem, table
from hack.timeline import Screen, print_table

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
RUN_ID = "quickstart"
AGENTS = 3
KILL_AT = 100
"""Step at which a worker process is killed. The joining agent imports torch during the steps that are left, which takes
seconds, and longer on a busy machine."""
SESSION_BATCH = 64
"""Samples per step of examples/session."""
POLL_SECONDS = 0.05
RESTARTING = """\
Three agents train examples/digits on this machine. One worker process is killed, then a fourth agent joins.
"""
CONTINUING = """
The same with examples/session: the script has an ElasticSession, so that the other processes continue.
"""


def run(steps: int, time_limit: float) -> int:
    """Returns the exit code: 0 only if training resumed after all changes, the final accuracy is good, and with a
    session no process restarted and no step was lost."""
    console = Console(highlight=False)
    return _run(console, steps, time_limit, False) or _run(console, steps, time_limit, True)


def _run(console: Console, steps: int, time_limit: float, is_session: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="elasticjob-quickstart-"))
    console.print(CONTINUING if is_session else RESTARTING, soft_wrap=True)
    with EmbeddedServer() as store, Screen(console) as screen:
        job = _Job(store, folder, steps, is_session, screen)
        try:
            job.follow(time.time() + time_limit)
        finally:
            job.end()
    print_table(console, *table(job.seen), numbers=True)
    for member, pids in sorted(job.seen.pids.items()):
        console.print(f"{member}: {', then '.join(f'process {pid}' for pid in dict.fromkeys(pids))}", soft_wrap=True)
    wrong = problem(job.seen, AGENTS + 1)
    if wrong:
        console.print(f"[bold red]The quick start failed:[/] {wrong}", soft_wrap=True)
        console.print(f"Logs and events: {folder}", soft_wrap=True)
        return 1
    if job.seen.accuracy is not None:
        console.print(f"[bold green]The trained model recognizes {job.seen.accuracy:.1%} of the test images.[/]")
    if is_session:
        console.print(f"[bold green]{job.seen.step} steps, none lost. No process restarted but the killed one.[/]")
    shutil.rmtree(folder)
    return 0


class _Job:
    """The agents, and the changes made to them."""

    def __init__(self, store: EmbeddedServer, folder: Path, steps: int, is_session: bool, screen: Screen) -> None:
        self._screen = screen
        self._endpoint = store.endpoint
        self._folder = folder
        self._steps = steps
        self._agents: list[Agent] = []
        self.seen = Seen(is_session=is_session)
        self._record(Change(Kind.START, "", time.time()))
        for _ in range(AGENTS):
            self._start_agent()

    def follow(self, end: float) -> None:
        """Returns when the job has ended, or at the time `end`."""
        while time.time() < end and not self._ended():
            self._observe()
            self._change()
            time.sleep(POLL_SECONDS)
        codes = {agent.name: agent.wait(0) for agent in self._agents}
        self._observe()
        self.seen = dataclasses.replace(
            self.seen, exit_codes={name: -1 if code is None else code for name, code in codes.items()}
        )

    def end(self) -> None:
        """Kills whatever is still running."""
        for agent in self._agents:
            agent.end()

    def _start_agent(self) -> Agent:
        agent = Agent(
            f"agent-{len(self._agents) + 1}",
            self._folder,
            [
                *("--nnodes", f"2:{AGENTS + 1}", "--nproc-per-node", "1", "--max-restarts", "3"),
                *(
                    "--rdzv-backend",
                    "etcd-v3",
                    "--rdzv-endpoint",
                    self._endpoint,
                    "--rdzv-id",
                    RUN_ID,
                    "--local-addr",
                    "127.0.0.1",
                ),
                *self._script(),
                *("--step-seconds=0.05", "--print-every=1", f"--checkpoint-dir={self._folder / 'checkpoints'}"),
            ],
        )
        self._agents.append(agent)
        return agent

    def _script(self) -> list[str | Path]:
        if self.seen.is_session:
            samples = self._steps * SESSION_BATCH
            return [EXAMPLES / "session" / "train.py", f"--samples={samples}", "--epochs=1", "--save-every=0"]
        return [EXAMPLES / "digits" / "train.py", f"--steps={self._steps}", "--checkpoint-every=1"]

    def _ended(self) -> bool:
        """Whether all agents have exited, or one has failed."""
        codes = [agent.wait(0) for agent in self._agents]
        return None not in codes or any(codes)

    def _observe(self) -> None:
        trained = [each for agent in self._agents for each in agent.trained()]
        printed = [(agent.name, what) for agent in self._agents for what in agent.output()]
        found = [what for _, what in printed]
        accuracies = [what for what in found if isinstance(what, float)]
        known = {each.round for each in self.seen.trained}
        for first in {each.round: each for each in reversed(trained) if each.round not in known}.values():
            detail = (
                f"{first.phases['first-step'] / 1000:.1f} s after the cause" if "first-step" in first.phases else ""
            )
            self._say(first.time, f"round {first.round} trains: {first.cause}", detail)
        self.seen = dataclasses.replace(
            self.seen,
            trained=[*self.seen.trained, *trained],
            steps=[*self.seen.steps, *(what for what in found if isinstance(what, StepLine))],
            pids=_with_pids(self.seen.pids, printed),
            accuracy=accuracies[-1] if accuracies else self.seen.accuracy,
        )
        if self.seen.steps:
            last = self.seen.steps[-1]
            state = f"{last.world} worker processes" if last.world else "training"
            self._screen.now(time.time() - self.seen.changes[0].time, state, f"step {last.step}")

    def _change(self) -> None:
        """First kills a worker process; starts another agent once training has resumed."""
        done = {change.kind for change in self.seen.changes}
        if Kind.WORKER_KILLED not in done:
            if self.seen.step >= KILL_AT:
                victim = self._agents[1]
                now = time.time()
                if self.seen.is_session:
                    os.kill(self.seen.pids[victim.name][-1], signal.SIGKILL)
                else:
                    now = victim.kill_worker()
                self._record(Change(Kind.WORKER_KILLED, victim.name, now))
        elif Kind.AGENT_JOINS not in done and self.seen.has_resumed(Kind.WORKER_KILLED):
            now = time.time()
            self._record(Change(Kind.AGENT_JOINS, self._start_agent().name, now))

    def _record(self, change: Change) -> None:
        self.seen = dataclasses.replace(self.seen, changes=[*self.seen.changes, change])
        self._say(change.time, str(change))

    def _say(self, at: float, what: str, detail: str = "") -> None:
        self._screen.say(at - self.seen.changes[0].time, what, detail)


def _with_pids(
    known: Mapping[str, Sequence[int]], printed: Sequence[tuple[str, StepLine | ProcessLine | float]]
) -> dict[str, list[int]]:
    """The worker processes of each agent, with those that have just printed their process IDs."""
    pids = {name: list(found) for name, found in known.items()}
    for name, what in printed:
        if isinstance(what, ProcessLine) and what.pid not in pids.get(name, []):
            pids.setdefault(name, []).append(what.pid)
    return pids
