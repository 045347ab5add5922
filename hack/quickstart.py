"""`make quickstart`: three agents train examples/session on this machine, without a cluster. One worker process is
killed, then a fourth agent joins; no other process restarts, and no step is lost."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticjob_runtime.contract import Env

from hack.cluster.processes import Child
from hack.embedded_etcd.server import EmbeddedServer

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "session" / "train.py"
AGENTS = 3
KILL_AT = 100
"""Step at which a worker process is killed. The joining agent imports torch during the steps that are left, which takes
seconds, and longer on a busy machine."""
BATCH = 64
"""Samples per step of the example."""


class QuickStartError(Exception):
    """It did not show what it should; the message says what."""


class Agent:
    """One `elasticrun`, which ends with this process."""

    def __init__(self, name: str, folder: Path, endpoint: str, steps: int) -> None:
        self.name = name
        self.log, self._events = folder / f"{name}.log", folder / f"{name}.events"
        command: list[str | Path] = [
            *(sys.executable, "-m", "elasticjob_runtime", "--events", self._events),
            *("--nnodes", f"2:{AGENTS + 1}", "--max-restarts", "3", "--local-addr", "127.0.0.1"),
            *("--rdzv-backend", "etcd-v3", "--rdzv-endpoint", endpoint, "--rdzv-id", "quickstart"),
            *(SCRIPT, f"--samples={steps * BATCH}", "--epochs=1", "--save-every=0"),
            *("--step-seconds=0.05", "--print-every=1", f"--checkpoint-dir={folder / 'checkpoints'}"),
        ]
        self.child = Child(command, self.log, {Env.MEMBER_ID: name})

    def printed(self, pattern: str) -> list[str]:
        """The group of `pattern` in each line of its output that has it."""
        return re.findall(pattern, self.log.read_text(errors="replace"))

    @property
    def pids(self) -> list[int]:
        """Its worker processes, in order; the script prints them."""
        return list(dict.fromkeys(int(pid) for pid in self.printed(r"\bpid=(\d+) ")))

    @property
    def changes(self) -> list[dict[str, Any]]:
        """Its summaries of changes after which it trained."""
        lines = self._events.read_text().split("\n")[:-1] if self._events.exists() else []
        events = (json.loads(line) for line in lines)
        return [event for event in events if event["event"] == "change" and event["end"] == "trained"]


class QuickStart:
    def __init__(self, folder: Path, endpoint: str, steps: int, time_limit: float) -> None:
        self._folder, self._endpoint, self._steps = folder, endpoint, steps
        self._began = time.time()
        self._end = self._began + time_limit
        self._told: set[int] = set()
        """Rounds that it has told."""
        self.agents: list[Agent] = []

    def run(self) -> None:
        """Raises QuickStartError."""
        for _ in range(AGENTS):
            self._start()
        self._say(f"{AGENTS} agents start: each imports torch")
        self._wait("training starts", lambda: self._step() >= KILL_AT)
        victim = self.agents[1]
        killed = time.time()
        os.kill(victim.pids[-1], signal.SIGKILL)
        self._say(f"{victim.name}'s worker process is killed at step {self._step()}")
        self._wait("a new worker process joins the others", lambda: self._has_joined(killed))
        joins = time.time()
        self._say(f"{self._start().name} starts at step {self._step()}")
        self._wait("a member joins", lambda: self._has_joined(joins))
        self._wait("training finishes", lambda: not any(agent.child.alive() for agent in self.agents))
        self._judge(victim)

    def close(self) -> None:
        for agent in self.agents:
            agent.child.stop(grace=0)

    def _start(self) -> Agent:
        self.agents.append(Agent(f"agent-{len(self.agents) + 1}", self._folder, self._endpoint, self._steps))
        return self.agents[-1]

    def _step(self) -> int:
        return max(int(step) for agent in self.agents for step in agent.printed(r"\bstep=(\d+)") or ["0"])

    def _has_joined(self, since: float) -> bool:
        changes = (change for agent in self.agents for change in agent.changes)
        return any(change["cause"] == "MemberJoined" and change["time"] >= since for change in changes)

    def _wait(self, what: str, happens: Callable[[], bool]) -> None:
        while not happens():
            self._tell_rounds()
            if failed := [agent.name for agent in self.agents if agent.child.process.poll()]:
                raise QuickStartError(f"{' and '.join(failed)} failed")
            if time.time() > self._end or not any(agent.child.alive() for agent in self.agents):
                raise QuickStartError(
                    f"not before the time was up or all steps were done: {what}. On a busy machine, use more steps: "
                    ".venv/bin/python -m hack.quickstart --steps 4000 --time-limit 600"
                )
            time.sleep(0.1)
        self._tell_rounds()

    def _tell_rounds(self) -> None:
        for agent in self.agents:
            for change in agent.changes:
                if change["round"] not in self._told:
                    self._told.add(change["round"])
                    first = change["phases"].get("first-step")
                    after = f", {first['since']:.1f} s after the cause" if first else ""
                    self._say(f"round {change['round']} trains: {change['cause']}{after}")

    def _say(self, what: str) -> None:
        print(f"{time.time() - self._began:6.1f} s  {what}", flush=True)

    def _judge(self, victim: Agent) -> None:
        for agent in self.agents:
            print(f"{agent.name}: {', then '.join(f'process {pid}' for pid in agent.pids)}")
            if len(agent.pids) != (2 if agent is victim else 1):
                raise QuickStartError(f"the worker process of {agent.name} was to continue, but it restarted")
        lost = sum(change["steps_lost"] or 0 for agent in self.agents for change in agent.changes)
        if lost:
            raise QuickStartError(f"{lost} steps were taken again")
        finished = {line for agent in self.agents for line in agent.printed(r"\bfinished (step=\d+ with \d+) workers")}
        if finished != {f"step={self._steps} with {AGENTS + 1}"}:
            raise QuickStartError(f"{AGENTS + 1} workers were to take {self._steps} steps: {', '.join(finished)}")
        print(f"{self._steps} steps, none lost. No process restarted but the killed one.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.quickstart", description=__doc__)
    parser.add_argument("--steps", type=int, default=800, help="training steps (default: 800)")
    parser.add_argument("--time-limit", type=float, default=170.0, metavar="SECONDS", help="default: 170")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="elasticjob-quickstart-"))
    with EmbeddedServer() as store:
        quick_start = QuickStart(folder, store.endpoint, arguments.steps, arguments.time_limit)
        try:
            quick_start.run()
        except QuickStartError as error:
            print(f"The quick start failed: {error}\nLogs and events: {folder}")
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            quick_start.close()
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
