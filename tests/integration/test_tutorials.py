"""The tutorials that need no cluster do what they say: each block runs as it stands in the page.

tests/e2e/test_tutorials.py runs the one for a cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.checks.examples import fenced
from hack.checks.steps import SAVED
from hack.cluster.ports import free_ports
from hack.images.recipe import ROOT
from hack.support import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

PATIENCE = 540.0
"""s for processes with torch to start, on a machine that does other things too."""

SAVES_AND_RESUMES = """
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
assert resume(model, optimizer) == 0
save(model, optimizer, 5)
dist.barrier()
assert resume(model, optimizer) == 5
"""

KEEPS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
keep(ElasticSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01)))
"""


def text_of(name: str) -> str:
    return (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "uses"), [("adapt-your-script", {"resume": SAVES_AND_RESUMES}), ("four-lines", {"keep": KEEPS})]
)
def test_every_python_block_of_a_tutorial_runs(name: str, uses: dict[str, str], tmp_path: Path) -> None:
    program = ROOT / "tests" / "integration" / "run_blocks.py"
    page = ROOT / "docs" / "tutorials" / f"{name}.md"
    done = subprocess.run(
        [sys.executable, program, page, json.dumps(uses)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    expected = [f"{name}.md:{block.line} works" for block in fenced(text_of(name)) if block.language == "python"]
    assert [line for line in done.stdout.splitlines() if line.endswith(" works")] == expected


class Terminal:
    """One of the reader's terminals."""

    def __init__(self, command: str, folder: Path, name: str) -> None:
        self._log = folder / f"{name}.log"
        paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **paths},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """Process, step and workers of each line that the script has printed."""
        found = re.findall(r"^process (\d+): step (\d+), (\d+) workers$", self.output, flags=re.MULTILINE)
        return [(int(pid), int(step), int(workers)) for pid, step, workers in found]

    def trains(self, workers: int, after: int = 0) -> tuple[int, int]:
        """Waits until it trains with so many workers after that step. Returns process and step."""

        def found() -> tuple[int, int]:
            pid, step, now = self.steps[-1]
            assert (now, step > after) == (workers, True), self.output[-2000:]
            return pid, step

        return eventually(found, PATIENCE, what=f"steps with {workers} workers")


@contextlib.contextmanager
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in reversed(opened):
        terminal.process.terminate()
        terminal.process.wait(PATIENCE)


@pytest.mark.nightly
def test_four_lines_lose_no_step_whatever_happens_to_the_other_agent(tmp_path: Path) -> None:
    """Port 2379 may be taken on this machine: the etcd gets another one."""
    page = text_of("four-lines")
    saved = SAVED.search(page)
    assert saved is not None
    line = page[: saved.start()].count("\n") + 1
    script = next(block for block in fenced(page) if block.language == "python" and block.line > line)
    (tmp_path / saved[1]).write_text(script.text, encoding="utf-8")
    _, server, agent = (block.text for block in fenced(page) if block.language == "sh")
    (port,) = free_ports(1)
    agent = agent.replace("127.0.0.1:2379", f"127.0.0.1:{port}")
    with terminals() as opened:
        opened.append(Terminal(f"{server} --port {port}", tmp_path, "first"))
        for name in ("second", "third"):
            opened.append(Terminal(agent, tmp_path, name))
        _, second, third = opened
        survivor, _ = second.trains(2)
        victim, _ = third.trains(2)

        os.kill(victim, signal.SIGKILL)
        eventually(lambda: third.steps[-1][0] != victim, PATIENCE, what="its process is replaced")
        pid, step = second.trains(2, after=third.steps[-1][1])
        assert pid == survivor

        third.process.send_signal(signal.SIGINT)
        pid, step = second.trains(1, after=step)
        assert pid == survivor

        opened.append(Terminal(agent, tmp_path, "fourth"))
        pid, step = second.trains(2, after=step)
        assert pid == survivor
        taken = [number for _, number, _ in second.steps]
        assert sorted(set(taken)) == list(range(taken[0], taken[-1] + 1)), "a step is missing"
