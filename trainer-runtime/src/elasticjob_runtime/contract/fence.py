"""The fencing token, which orders the worker groups of a job."""

from __future__ import annotations

import dataclasses
import re

_TEXT = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})")


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Fence:
    """Later groups have larger tokens. As text: `<run>.<store generation>.<round>`, as in
    ELASTICJOB_FENCE.

    >>> Fence.parse("2.1.7") > Fence.parse("2.0.40")
    True
    """

    run: int
    """Number of the job's run, from the operator. Without one: the Unix time of the first plan, s."""
    store_generation: int
    """Counts the etcds of this run: incremented when the operator replaces one by force."""
    round: int
    """The plan's round."""

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Raises ValueError unless `text` is three integers separated by dots."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"expected <run>.<store generation>.<round>, got {text[:80]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.run}.{self.store_generation}.{self.round}"
