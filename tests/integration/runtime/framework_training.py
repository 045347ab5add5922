"""Trains with a framework twice, undisturbed in one process and with agents of which one joins later, and compares.

The script gets a folder. It appends a line of JSON for each step to `ledger-PID` there (step, world, rank, and the
indices of the samples it used), waits after each step until the file `hurry` exists, and writes its weights to `result`
at the end.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.support import eventually
from tests.integration.runtime import framework_environments
from tests.integration.runtime.agents import SOURCE, Job

STEPS, BATCH = 300, 12
"""Of the training, and samples in a batch of all ranks."""


def assert_a_join_loses_no_step(job: Job, folder: Path, python: Path, text: str) -> None:
    script = folder / "train.py"
    script.write_text(text)
    reference, elastic = folder / "undisturbed", folder / "elastic"
    _train_undisturbed(python, script, reference)
    elastic.mkdir()
    for name, world in (("a", 1), ("b", 2), ("c", 3)):
        job.start(
            name,
            script=["--no-python", str(python), str(script), str(elastic)],
            environment=framework_environments.environment(SOURCE),
        )
        if world > 1:
            trains = functools.partial(_has_trained, elastic, world)
            eventually(trains, 200, what=f"{world} processes train; logs:\n{job.logs}")
    (elastic / "hurry").touch()
    assert [agent.exit_code(timeout=200) for agent in job.agents] == [0, 0, 0], job.logs
    _compare(_steps(reference), _steps(elastic))
    weights, undisturbed = (json.loads((item / "result").read_text()) for item in (elastic, reference))
    assert weights == pytest.approx(undisturbed, abs=1e-9)  # the order in which ranks are added up differs


def _train_undisturbed(python: Path, script: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "hurry").touch()
    done = subprocess.run(
        [python, script, folder],
        env={**os.environ, **framework_environments.environment(SOURCE)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def _compare(expected: dict[int, list[dict[str, Any]]], found: dict[int, list[dict[str, Any]]]) -> None:
    """Each step was taken once, by all ranks of one world, with the samples of the undisturbed run."""
    assert sorted(found) == sorted(expected) == list(range(1, STEPS + 1))
    for step, entries in found.items():
        world = entries[0]["world"]
        assert sorted(entry["rank"] for entry in entries) == list(range(world)), f"step {step}: {entries}"
        assert sorted(index for entry in entries for index in entry["used"]) == sorted(expected[step][0]["used"]), step


def _has_trained(folder: Path, world: int) -> bool:
    return any(entry["world"] == world for entries in _steps(folder).values() for entry in entries)


def _steps(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Step -> what each rank did in it."""
    found: dict[int, list[dict[str, Any]]] = collections.defaultdict(list)
    for file in folder.glob("ledger-*"):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            found[entry["step"]].append(entry)
    return found
