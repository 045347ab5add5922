"""Which modules a zygote imports: those of nearly every script, those the user named, those the script itself was seen to import."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

AUTO = "auto"
"""Value of --preload: learn from the script's first run."""

LEARNED = "?"
"""Before the name of a module that was learned: it is imported only where it is an installed one."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Modules:
    """Pure bookkeeping."""

    base: Sequence[str]
    asked: Sequence[str] = ()
    learned: Sequence[str] = ()
    unfit: frozenset[str] = frozenset()
    """Start a thread or touch a GPU when they are imported: a process that has imported one must not be forked."""

    def names(self) -> list[str]:
        """What to hand to the zygote, in order."""
        learned = [name for name in self.learned if name not in (*self.base, *self.asked)]
        fit = [name for name in (*self.asked, *(LEARNED + name for name in learned)) if not self._is_left_out(name.removeprefix(LEARNED))]
        return [*self.base, *fit]

    def learn(self, names: Iterable[str]) -> bool:
        """Takes what the script imported. False: nothing new."""
        before = self.names()
        self.learned = tuple(names)
        return self.names() != before

    def unlearned(self) -> Modules:
        return dataclasses.replace(self, learned=())

    def can_do_without(self, name: str) -> bool:
        """A module of the base is in every worker: without it a zygote is worth nothing."""
        return name not in self.base and not self._is_left_out(name)

    def leave_out(self, name: str) -> bool:
        """Never again. True: the user had asked for it."""
        self.unfit |= {name}
        return name in self.asked

    def _is_left_out(self, name: str) -> bool:
        """A module of a package that is unfit would import the package."""
        return any(within(name, unfit) for unfit in self.unfit)


def within(name: str, package: str) -> bool:
    """
    >>> within("a.b", "a"), within("ab", "a")
    (True, False)
    """
    return name == package or name.startswith(package + ".")
