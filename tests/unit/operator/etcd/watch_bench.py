"""RunWatches on a store in memory, for one job."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from elasticjob_operator.etcd.client import AsyncStore
from elasticjob_operator.etcd.limits import TimeBudget
from elasticjob_operator.etcd.run_watches import RunWatches
from elasticjob_operator.planning import Target
from elasticjob_operator.state import RendezvousView
from elasticjob_runtime.contract import DEFAULT_PREFIX, Keys, SpecValue

from tests.unit.operator.etcd.memory import Memory
from tests.unit.operator.waiting import until

KEY = ("ml", "digits")
TARGET = Target(endpoint="etcd:2379", run_id="u-1")
KEYS = Keys(DEFAULT_PREFIX, "u-1")
SPEC = SpecValue(min=1, max=2)


class Bench:
    def __init__(self) -> None:
        self.memory = Memory()
        self.store = self.memory.store
        self.connect_errors: Iterator[Exception | None] = itertools.repeat(None)
        self.changes = 0
        self.on_change: Callable[[], object] = lambda: None
        self.keys: set[tuple[str, str]] = set()
        self.reports: list[tuple[str, str]] = []
        """Jobs that reported progress and nothing else."""
        self.run_watches = RunWatches(self._changed, self._open, progressed=self.reports.append)

    def _changed(self, key: tuple[str, str]) -> None:
        self.keys.add(key)
        self.changes += 1
        self.on_change()

    def _open(self, endpoint: str, budget: TimeBudget) -> AsyncStore:
        assert budget
        assert endpoint == "etcd:2379"
        error = next(self.connect_errors)
        if error is not None:
            raise error
        return self.memory

    @property
    def view(self) -> RendezvousView:
        return self.run_watches.view(KEY)

    async def until(self, condition: Callable[[RendezvousView], object]) -> None:
        await until(lambda: condition(self.view))
