"""Stands for the engine of a session."""

from __future__ import annotations

from elasticjob_runtime.training.session.backend import OneProcess
from elasticjob_runtime.training.session.interruption import Interruption


class QuietEngine(OneProcess):
    """Of a world in which nothing happens."""

    due = False
    between_steps = False
    evaluates = False

    def __init__(self, *, completes_early: bool = False) -> None:
        self.completes_early = completes_early
        self.interruption = Interruption()

    def wait_for_collectives(self, *, used: bool = True) -> None:
        pass
