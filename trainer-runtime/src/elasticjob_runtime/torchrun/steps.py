"""The optimizer steps of worker processes that torch's agent starts.

That agent chooses their error files, next to which elasticrun has their pages (training/auto_progress.py). So they make
the pages themselves, in a folder that the environment names; torch's agent gives its own to each of them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time

from elasticjob_runtime.agent.optimizer_steps import OptimizerSteps
from elasticjob_runtime.contract import Env, ProgressValue
from elasticjob_runtime.workers.spawn import HOOKS


class WorkerSteps:
    """Of the worker processes of one round. `starting` is called on the thread of torch's agent, `progress` on the
    member's. Times are monotonic, s."""

    def __init__(self) -> None:
        self._wanted = os.environ.get(Env.STEPS_FOLDER) != ""
        self._current: tuple[int, tempfile.TemporaryDirectory[str], OptimizerSteps] | None = None

    @property
    def due(self) -> float | None:
        """When to call `progress` again; None: there is nothing to read."""
        return self._current[2].due if self._current is not None else None

    def starting(self, round_number: int, now: float) -> None:
        """torch's agent will start worker processes of this round, with the environment of this process."""
        if not self._wanted:
            return
        try:
            folder = tempfile.TemporaryDirectory(prefix="elasticjob-steps-", ignore_cleanup_errors=True)
        except OSError:
            return
        os.environ[Env.STEPS_FOLDER] = folder.name
        before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != HOOKS]
        os.environ["PYTHONPATH"] = os.pathsep.join([HOOKS, *before])
        steps = OptimizerSteps(now)
        steps.due = now
        self._current = round_number, folder, steps

    def progress(self, now: float, *, ended: bool) -> ProgressValue | None:
        """What to publish, if it is time to, or the workers have ended."""
        if self._current is None:
            return None
        round_number, folder, steps = self._current
        if steps.due is not None and (ended or now >= steps.due):
            with contextlib.suppress(OSError):
                ranks = [int(name) for name in os.listdir(folder.name) if name.isdigit()]
                steps.watch({rank: os.path.join(folder.name, str(rank), "error.json") for rank in ranks})
            steps.read(now)
        if ended:
            steps.due = None
        return steps.progress(round_number, now, time.time(), at_once=ended)
