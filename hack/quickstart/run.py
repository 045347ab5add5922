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
from hack.quickstart.show import CONTINUING, RESTARTING, Screen, print_table
from hack.quickstart.timeline import Change, Kind, ProcessLine, Seen, StepLine, problem

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


def run(steps: int, time_limit: float) -> int:
    """Returns the exit code: 0 only if training resumed after all changes, the final accuracy is good, and with a
    session no process restarted and no step was lost."""
    console = Console(highlight=False)
    return _run(console, steps, time_limit, False) or _run(console, steps, time_limit, True)


def _run(console: Console, steps: int, time_limit: float, is_session: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="elasticjob-quickstart-"))
    with EmbeddedServer() as store, Screen(console, CONTINUING if is_session else RESTARTING) as screen:
        job = _Job(store, folder, steps, is_session)
        try:
            job.follow(screen, time.time() + time_limit)
        finally:
            job.end()
        screen.update(job.seen)
    print_table(console, job.seen)
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

    def __init__(self, store: EmbeddedServer, folder: Path, steps: int, is_session: bool) -> None:
        self._endpoint = store.endpoint
        self._folder = folder
        self._steps = steps
        self._agents: list[Agent] = []
        self.seen = Seen(is_session=is_session)
        self._record(Change(Kind.START, "", time.time()))
        for _ in range(AGENTS):
            self._start_agent()

    def follow(self, screen: Screen, end: float) -> None:
        """Returns when the job has ended, or at the time `end`."""
        while time.time() < end and not self._ended():
            self._observe()
            self._change()
            screen.update(self.seen)
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
        events = [event for agent in self._agents for event in agent.events()]
        printed = [(agent.name, what) for agent in self._agents for what in agent.output()]
        found = [what for _, what in printed]
        accuracies = [what for what in found if isinstance(what, float)]
        self.seen = dataclasses.replace(
            self.seen,
            events=[*self.seen.events, *events],
            steps=[*self.seen.steps, *(what for what in found if isinstance(what, StepLine))],
            pids=_with_pids(self.seen.pids, printed),
            accuracy=accuracies[-1] if accuracies else self.seen.accuracy,
        )

    def _change(self) -> None:
        """First kills a worker process; starts another agent once training has resumed."""
        done = {change.kind for change in self.seen.changes}
        if Kind.WORKER_KILLED not in done:
            if self.seen.step >= KILL_AT:
                self._kill(self._agents[1])
        elif Kind.AGENT_JOINS not in done and self.seen.first_step_of(self._last_of_kill):
            now = time.time()
            self._record(Change(Kind.AGENT_JOINS, self._start_agent().name, now))

    @property
    def _last_of_kill(self) -> Kind:
        """The change that ends what began with the killed process."""
        return Kind.REPLACEMENT_JOINS if self.seen.is_session else Kind.WORKER_KILLED

    def _kill(self, victim: Agent) -> None:
        if not self.seen.is_session:
            self._record(Change(Kind.WORKER_KILLED, victim.name, victim.kill_worker()))
            return
        now = time.time()
        os.kill(self.seen.pids[victim.name][-1], signal.SIGKILL)
        self._record(Change(Kind.WORKER_KILLED, victim.name, now))
        self._record(Change(Kind.REPLACEMENT_JOINS, victim.name, now))

    def _record(self, change: Change) -> None:
        self.seen = dataclasses.replace(self.seen, changes=[*self.seen.changes, change])


def _with_pids(
    known: Mapping[str, Sequence[int]], printed: Sequence[tuple[str, StepLine | ProcessLine | float]]
) -> dict[str, list[int]]:
    """The worker processes of each agent, with those that have just printed their process IDs."""
    pids = {name: list(found) for name, found in known.items()}
    for name, what in printed:
        if isinstance(what, ProcessLine) and what.pid not in pids.get(name, []):
            pids.setdefault(name, []).append(what.pid)
    return pids
