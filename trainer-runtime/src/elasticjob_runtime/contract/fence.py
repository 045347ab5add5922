"""The fencing token: which of two groups of the same job is the newer one."""

from __future__ import annotations

import dataclasses
import re

_TEXT = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})")


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Fence:
    """Ordered: the later group has the larger one. Its text is `<run>.<store generation>.<round>`, as in
    ELASTICJOB_FENCE.

    >>> Fence.parse("2.1.7") > Fence.parse("2.0.40")
    True
    """

    run: int
    """Number of the job's run, from the operator. Without one: the Unix time of the first plan, s."""
    store_generation: int
    """Which etcd of this run: grows when the operator replaces it by force."""
    round: int
    """Rendezvous round: the plan's round."""

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Raises ValueError where `text` is not three integers, separated by dots."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"expected <run>.<store generation>.<round>, got {text[:80]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.run}.{self.store_generation}.{self.round}"
