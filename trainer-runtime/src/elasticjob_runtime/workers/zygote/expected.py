"""What the next worker of each local rank will probably look like, so that a process can be preforked for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from elasticjob_runtime.workers.process import WorkerSpec
from elasticjob_runtime.workers.zygote.preload import PreloadModules, matches


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedWorker:
    """What the next worker of a local rank will probably look like."""

    local_rank: int
    per_rank_imports: Sequence[str] = ()
    """What the preforked process imports ahead, under `environment`."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class ExpectedWorkers:
    """The expectation for all local ranks. Pure: no I/O."""

    def __init__(self, nproc: int, modules: PreloadModules) -> None:
        self.local_ranks = range(nproc)
        self._modules = modules
        self._environments: dict[int, Mapping[str, str]] = {}
        """Local rank -> the environment that its next worker will probably have."""

    def set_environments(self, environments: Mapping[int, Mapping[str, str]]) -> None:
        self._environments = dict(environments)

    def set_environment(self, local_rank: int, environment: Mapping[str, str]) -> None:
        self._environments[local_rank] = dict(environment)

    def workers(self) -> list[ExpectedWorker]:
        return [self._worker(local_rank) for local_rank in self.local_ranks]

    def can_run(self, expected: ExpectedWorker, spec: WorkerSpec) -> bool:
        """Whether a process forked for `expected` can run the worker, as far as is known before its imports."""
        if not expected.per_rank_imports:
            return True
        variables = {name for reads in self._modules.results.per_rank.values() for name in reads}
        return matches({name: expected.environment.get(name) for name in variables}, spec.environment)

    def _worker(self, local_rank: int) -> ExpectedWorker:
        environment = self._environments.get(local_rank)
        if environment is None:
            return ExpectedWorker(local_rank=local_rank)
        imports = tuple(self._modules.results.per_rank)
        return ExpectedWorker(local_rank=local_rank, per_rank_imports=imports, environment=environment)
