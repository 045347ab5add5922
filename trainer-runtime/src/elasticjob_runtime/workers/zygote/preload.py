"""Which modules a zygote imports, and when it learns new ones. Pure.

A zygote preloads what nearly every script imports, what the user named with --preload, and what the script was seen to
import. A module is preloaded only if a trial import (trial_imports.py) leaves the process safe to fork.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

AUTO = "auto"
"""Value of --preload: learn from what the script imports."""

PREDICTABLE = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS",
})  # fmt: skip
"""Variables whose values in the next worker process can usually be predicted before its plan: a surviving member keeps
its rank."""

WORKER_VARIABLES = PREDICTABLE | {
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "ELASTICJOB_ROUND",
    "ELASTICJOB_FENCE",
}
"""Variables that differ from one worker process to the next."""

QUIET_SECONDS = 1.5
"""s without a new import before the imports seen so far are learned."""

MAX_QUIET_PERIODS = 3.0
"""Multiple of QUIET_SECONDS after which imports are learned even if the script keeps importing."""

MAX_PAUSE_SECONDS = 300.0
"""Upper limit, in s, of the growing pause between two learning passes."""


@dataclasses.dataclass(slots=True)
class ImportResults:
    """What trial imports found out about modules."""

    fork_safe: list[str] = dataclasses.field(default_factory=list)
    """Modules a zygote may import, in order, without those that another one imports itself."""
    per_rank: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Module -> the worker variables it reads when it is imported. Each preforked process imports these itself, under
    the environment it expects to run with."""
    excluded: dict[str, str] = dataclasses.field(default_factory=dict)
    """Module -> why only the script may import it."""

    def covers(self, name: str) -> bool:
        """Whether a result for `name` follows from that of its package. A submodule of a per-rank package is recorded
        as per-rank too."""
        package = next((one for one in self.per_rank if within(name, one)), None)
        if package is not None:
            self.per_rank.setdefault(name, self.per_rank[package])
        return package is not None or any(within(name, excluded) for excluded in self.excluded)

    def reject(self, name: str, reason: str, reads: Sequence[str] = ()) -> None:
        """Records that a zygote must not import `name`. `reads`: the worker variables it reads, if that is the only
        problem."""
        if reads and PREDICTABLE.issuperset(reads):
            self.per_rank[name] = list(reads)
        else:
            self.excluded[name] = reason

    def add(self, other: ImportResults) -> None:
        self.fork_safe += [name for name in other.fork_safe if name not in self.fork_safe]
        self.per_rank |= other.per_rank
        self.excluded |= other.excluded

    def to_message(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> ImportResults:
        return cls(
            fork_safe=list(message["fork_safe"]),
            per_rank=dict(message["per_rank"]),
            excluded=dict(message["excluded"]),
        )

    def importable(self) -> list[str]:
        """Modules that can be imported before the script runs."""
        return [*self.fork_safe, *self.per_rank]


@dataclasses.dataclass(kw_only=True, slots=True)
class PreloadModules:
    """The modules to preload and what is known about them."""

    base: Sequence[str]
    """Needed by every worker: a zygote without them is worthless."""
    requested: Sequence[str] = ()
    """Named by the user."""
    not_fork_safe: frozenset[str] = frozenset()
    """Requested modules that start a thread, touch a GPU or the like when they are imported."""
    learned: dict[str, None] = dataclasses.field(default_factory=dict)
    """Modules that scripts imported, in order."""
    tried: set[str] = dataclasses.field(default_factory=set)
    """Learned modules that the current zygote has tried."""
    results: ImportResults = dataclasses.field(default_factory=ImportResults)

    def initial(self) -> list[str]:
        """What the first zygote imports."""
        requested = [name for name in self.requested if not any(within(name, one) for one in self.not_fork_safe)]
        return [*self.base, *requested]

    def learn(self, names: Iterable[str]) -> bool:
        """Records modules that a script imports. Returns False if none of them is new."""
        count = len(self.learned)
        known = {*self.base, *self.requested}
        self.learned.update((name, None) for name in names if is_worth_trying(name) and name not in known)
        return len(self.learned) > count

    def untried(self) -> list[str]:
        return [name for name in self.learned if name not in self.tried]

    def forget_trials(self) -> None:
        """A fresh zygote has imported none of the learned modules."""
        self.tried.clear()

    def can_exclude(self, name: str) -> bool:
        return name not in self.base and name not in self.not_fork_safe

    def exclude(self, name: str) -> None:
        self.not_fork_safe |= {name}


class LearningSchedule:
    """Decides when a zygote tries new imports. Times are monotonic, in s.

    A script's imports arrive one after the other over seconds. The first are learned while the script still imports the
    last, so that a crash within its first minute already benefits. Each pass costs a fork of the zygote and of every
    preforked process, so the pauses grow.
    """

    def __init__(self, modules: PreloadModules, *, enabled: bool, quiet: float | None = None) -> None:
        """`quiet` overrides QUIET_SECONDS."""
        self._modules = modules
        self._enabled = enabled
        self._quiet = QUIET_SECONDS if quiet is None else quiet
        self._pause = self._quiet
        self._first: float | None = None
        self._last = 0.0
        self._not_before = 0.0
        self._in_trial: list[str] = []

    @property
    def due(self) -> float | None:
        """When `take_due` returns something; None if every known module was tried."""
        if self._first is None or not self._modules.untried():
            return None
        return max(min(self._last + self._quiet, self._first + self._quiet * MAX_QUIET_PERIODS), self._not_before)

    def imported(self, name: str, now: float) -> None:
        """A script imports `name`."""
        if self._enabled and self._modules.learn([name]):
            self._first = now if self._first is None else self._first
            self._last = now

    def add_known(self, results: ImportResults) -> None:
        """Takes over what another member found out. Tried at once."""
        if self._enabled:
            self._modules.learn(results.importable())
            self._modules.results.per_rank.update(results.per_rank)
            self._first = self._last = float("-inf")

    def take_due(self, now: float) -> list[str]:
        """The modules to try now; call `finished` when they have been tried."""
        if self.due is None or now < self.due:
            return []
        self._first = None
        self._in_trial = self._modules.untried()
        return list(self._in_trial)

    def finished(self, now: float, *, fresh_zygote: bool) -> None:
        """The trial is over. `fresh_zygote`: its zygote was lost, and the one in its place has tried nothing yet."""
        if fresh_zygote:
            self._modules.forget_trials()
            self._first = self._last = float("-inf")
        else:
            self._modules.tried.update(self._in_trial)
            self._not_before = now + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
        self._in_trial = []
        if self._modules.untried() and self._first is None:
            self._first = self._last = now


def is_worth_trying(name: str) -> bool:
    """Whether to preload a module of this name. The standard library is cheap to import, and names from outside may be
    anything.

    >>> [is_worth_trying(name) for name in ("pandas.core", "json.decoder", "__main__", "a b", "x" * 300)]
    [True, False, False, False, False]
    """
    top = name.partition(".")[0]
    known = top in sys.stdlib_module_names or top in ("__main__", "elasticjob_runtime")
    return not known and len(name) <= 200 and all(part.isidentifier() for part in name.split("."))


def by_package(names: Iterable[str]) -> list[list[str]]:
    """Groups modules by top-level package, in the order in which the packages first appear.

    >>> by_package(["a", "b.c", "a.d"])
    [['a', 'a.d'], ['b.c']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition(".")[0], []).append(name)
    return list(groups.values())


def matches(variables_read: Mapping[str, str | None], environment: Mapping[str, str]) -> bool:
    """Whether a process that imported modules with these values can run a worker with `environment`.

    >>> matches({"RANK": "1", "SLURM_PROCID": None}, {"RANK": "1"}), matches({"RANK": "1"}, {"RANK": "0"})
    (True, False)
    """
    return all(environment.get(name) == value for name, value in variables_read.items())


def within(name: str, package: str) -> bool:
    """
    >>> within("a.b", "a"), within("ab", "a")
    (True, False)
    """
    return name == package or name.startswith(package + ".")
