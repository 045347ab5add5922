"""Which modules a zygote imports: those of nearly every script, those the user named, those scripts were seen to
import. Pure."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

AUTO = "auto"
"""Value of --preload: learn from what the scripts import."""

PREDICTABLE = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS",
})  # fmt: skip
"""Variables whose values in the next worker are known before its plan, most likely: a survivor keeps its rank."""

WORKER_VARIABLES = PREDICTABLE | {
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "ELASTICJOB_ROUND",
    "ELASTICJOB_FENCE",
}
"""Variables that have another value in each worker."""


@dataclasses.dataclass(slots=True)
class Verdicts:
    """What trial imports found out."""

    fit: list[str] = dataclasses.field(default_factory=list)
    """Modules that a zygote may import, in order; without those that another one brings along."""
    late: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Modules that each preforked worker imports itself, since they ask for its rank when they are imported -> the
    variables."""
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    """Modules that nobody imports before the script does -> why."""

    def rules_on(self, name: str) -> bool:
        """Whether it is of a module that was refused, or is imported late: then it is so too, and is noted."""
        package = next((late for late in self.late if within(name, late)), None)
        if package is not None:
            self.late.setdefault(name, self.late[package])
        return package is not None or any(within(name, refused) for refused in self.refused)

    def refuse(self, name: str, why: str, reads: Sequence[str] = ()) -> None:
        """`reads`: the variables that it asks for, where that is all that is wrong with it."""
        if reads and PREDICTABLE.issuperset(reads):
            self.late[name] = list(reads)
        else:
            self.refused[name] = why

    def add(self, other: Verdicts) -> None:
        self.fit += [name for name in other.fit if name not in self.fit]
        self.late |= other.late
        self.refused |= other.refused

    def to_message(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Verdicts:
        return cls(fit=list(message["fit"]), late=dict(message["late"]), refused=dict(message["refused"]))

    def known(self) -> list[str]:
        """All modules that are worth importing before the script does."""
        return [*self.fit, *self.late]


@dataclasses.dataclass(kw_only=True, slots=True)
class Modules:
    """What is to be imported, and what is known of it."""

    base: Sequence[str]
    asked: Sequence[str] = ()
    unfit: frozenset[str] = frozenset()
    """Of those that were asked for: they start a thread or touch a GPU when they are imported."""
    learned: dict[str, None] = dataclasses.field(default_factory=dict)
    """What scripts were seen to import, in order."""
    tried: set[str] = dataclasses.field(default_factory=set)
    """Of those: a zygote knows them."""
    verdicts: Verdicts = dataclasses.field(default_factory=Verdicts)

    def named(self) -> list[str]:
        """What the first zygote imports."""
        return [*self.base, *(name for name in self.asked if not any(within(name, unfit) for unfit in self.unfit))]

    def learn(self, names: Iterable[str]) -> bool:
        """Takes what a script imports. False: nothing that could be preloaded is new."""
        count = len(self.learned)
        own = {*self.base, *self.asked}
        self.learned.update((name, None) for name in names if is_worth_trying(name) and name not in own)
        return len(self.learned) > count

    def to_try(self) -> list[str]:
        """What no zygote has tried yet."""
        return [name for name in self.learned if name not in self.tried]

    def forget_trials(self) -> None:
        """The zygote is another one, which has imported nothing of it."""
        self.tried.clear()

    def can_do_without(self, name: str) -> bool:
        """A module of the base is in every worker: without it a zygote is worth nothing."""
        return name not in self.base and name not in self.unfit

    def leave_out(self, name: str) -> None:
        self.unfit |= {name}


def is_worth_trying(name: str) -> bool:
    """The standard library costs next to nothing, and names from outside may be anything.

    >>> [is_worth_trying(name) for name in ("pandas.core", "json.decoder", "__main__", "a b", "x" * 300)]
    [True, False, False, False, False]
    """
    top = name.partition(".")[0]
    known = top in sys.stdlib_module_names or top in ("__main__", "elasticjob_runtime")
    return not known and len(name) <= 200 and all(part.isidentifier() for part in name.split("."))


def by_package(names: Iterable[str]) -> list[list[str]]:
    """Groups them by top-level package, in the order in which those came.

    >>> by_package(["a", "b.c", "a.d"])
    [['a', 'a.d'], ['b.c']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition(".")[0], []).append(name)
    return list(groups.values())


def matches(seen: Mapping[str, str | None], environment: Mapping[str, str]) -> bool:
    """Whether what was imported under the answers `seen` is right for a worker with `environment`.

    >>> matches({"RANK": "1", "SLURM_PROCID": None}, {"RANK": "1"}), matches({"RANK": "1"}, {"RANK": "0"})
    (True, False)
    """
    return all(environment.get(name) == value for name, value in seen.items())


def within(name: str, package: str) -> bool:
    """
    >>> within("a.b", "a"), within("ab", "a")
    (True, False)
    """
    return name == package or name.startswith(package + ".")
