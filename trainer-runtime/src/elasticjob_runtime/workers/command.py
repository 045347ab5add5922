"""What every worker runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """`program` (an interpreter with its flags; empty: the script is a program) and the script or module with its
    arguments."""

    program: Sequence[str] = ()
    module: bool = False
    arguments: Sequence[str]

    def for_rank(self, local_rank: int) -> list[str]:
        """The whole command line; torchrun's macro `${local_rank}` is filled in."""
        flags = ["-m"] if self.module else []
        return [*self.program, *flags, *self.script_arguments(local_rank)]

    def script_arguments(self, local_rank: int) -> list[str]:
        """sys.argv as the script sees it."""
        return [argument.replace("${local_rank}", str(local_rank)) for argument in self.arguments]
