"""What sources said about themselves, so that a process that opens a stream need not read it from its beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elasticjob_runtime.data.stream_reader import CHECKED
from elasticjob_runtime.data.streams import SourceState


class SourceStates:
    """Of the streams of one epoch. They only make skipping faster, so each process has what it happens to know."""

    def __init__(self) -> None:
        self._epoch = 0
        self._states: dict[int, list[SourceState]] = {}
        """Of each stream, in the order of their counts."""

    def begin_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._states = epoch, {}

    def of(self, stream: int) -> list[SourceState]:
        return self._states.get(stream, [])

    def add(self, stream: int, states: Iterable[SourceState], committed: int) -> None:
        """committed: items of the stream. States that a later one replaces are forgotten."""
        found = {state.count: state for state in (*self.of(stream), *states)}
        usable = [count for count in found if count + CHECKED <= committed]
        self._states[stream] = [found[count] for count in sorted(found) if not usable or count >= max(usable)]

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        states = [
            (stream, [(state.count, state.digest, state.state) for state in states])
            for stream, states in self._states.items()
        ]
        return {"epoch": self._epoch, "states": states} if states else {}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self._epoch = int(saved.get("epoch", 0))
        self._states = {
            int(stream): [SourceState(*state) for state in states] for stream, states in saved.get("states", ())
        }
