"""The state of a training whose models are sharded over the ranks (FSDP2). Such a training restarts its worker
processes at every change, and continues from the memory of the agents, or a checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from elasticjob_runtime.training import channel
from elasticjob_runtime.training.memory import Pace
from elasticjob_runtime.training.save_request import session_ends
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.state import Storage, TrainingState
from elasticjob_runtime.training.session.world import ProcessState, SessionError, World
from elasticjob_runtime.training.sharded import ranks, saving
from elasticjob_runtime.training.sharded.contents import Contents, is_sharded
from elasticjob_runtime.training.sharded.memory import Shards

logger = logging.getLogger("elasticjob_runtime.training")

_POSITION = "elasticjob session"
"""Name of the session's own part. No part of the user's has a space in its name."""


def new_state(parts: Parts) -> TrainingState:
    """Raises TypeError for models that are sharded in a way that is not supported."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for part in parts.modules for module in part.modules()):
        raise TypeError(
            "ElasticSession: a model in FullyShardedDataParallel (FSDP1) cannot be saved in shards; use fully_shard "
            "(FSDP2)"
        )
    return ShardedState(parts) if any(is_sharded(part) for part in parts.modules) else TrainingState(parts)


class ShardedState(TrainingState):
    """Each rank has a part of it, so all of them save and load together."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts, snapshots=False)
        self._contents = contents_of(self)
        self._shards = Shards(f"sharded session {self._layout}")
        self._shared = SharedSnapshots(self._shards, self._contents)

    def load(self, storage: Storage) -> None:
        self._storage = storage  # see `agree`, which all ranks call

    def _save(self) -> None:
        storage = self._storage
        assert storage is not None
        block = storage.block or self._ends  # what is not written before the end is lost
        saving.save(storage.path, self._contents, self.committed, storage.keep, block=block)

    def agree(
        self,
        process_states: Sequence[ProcessState],
        interruption: Interruption | None = None,
        world: World | None = None,
        group: Any = None,
    ) -> None:
        assert (interruption, world, group) == (None, None, None), "sharded models do not continue in place"
        for rank, process_state in enumerate(process_states):
            if process_state.layout != process_states[0].layout:
                raise SessionError(
                    f"the models of rank {rank} have other parameters or buffers than those of rank 0: all ranks must "
                    "build the same models"
                )
        began = time.time()
        step = self._shards.restore(self._contents, self._storage.path if self._storage is not None else None)
        if step is not None:
            channel.send_phase("restore", began=began, step=step)
        self.committed = max(self.committed, 0)
        self._live = True
        self._restore_random()
        self._shared.are_possible = all(ranks.gather(self._shards.is_possible))

    def keep(self) -> None:
        """Saves and takes snapshots after the same steps on all ranks; in any case before a planned change."""
        if self._saves_at(self.committed):
            self._collect_random()
            self._save()
        if (self._shared.are_possible or self._saves) and session_ends():
            self._collect_random()
            self._keep_last()
        else:
            self._shared.keep(self.committed, self._collect_random)
        self._random = None

    def _take_last(self, seconds: float) -> bool:
        return self._shared.are_possible and self._shards.keep_last(self._contents, self.committed, seconds)

    def _finish_save(self) -> None:
        saving.finish()


def contents_of(state: TrainingState) -> Contents:
    """Of a checkpoint in shards."""
    return Contents({**state.parts.named, _POSITION: _Position(state)})


class SharedSnapshots:
    """In memory, which all ranks take after the same steps."""

    def __init__(self, shards: Shards, contents: Contents) -> None:
        self._shards, self._contents = shards, contents
        self._pace = _SharedPace()
        self.are_possible = False
        """As far as this rank knows; the same on all."""

    def keep(self, step: int, prepare: Callable[[], None]) -> None:
        """Collective. Takes a snapshot of this step if it is time for one, after `prepare`."""
        if not self.are_possible or not self._pace.is_near(step):
            return
        began = time.monotonic()
        wishes = ranks.gather((self._shards.is_busy(self._contents), self._pace.interval, self._shards.is_possible))
        self.are_possible = all(possible for _, _, possible in wishes)
        self._pace.agree(step, max(interval for _, interval, _ in wishes))
        if self.are_possible and not any(busy for busy, _, _ in wishes):
            prepare()
            self._shards.keep(self._contents, step)
            self._pace.took(time.monotonic() - began)


class _SharedPace:
    """After which steps all ranks take snapshots: each measures, and the largest interval counts."""

    def __init__(self) -> None:
        self._own = Pace()
        self._next = 0
        self._longest = 1
        self._measures = False

    @property
    def interval(self) -> int:
        return self._own.interval

    def is_near(self, step: int) -> bool:
        """Whether all ranks meet after this step. To be called after each step."""
        self._own.is_due(step, time.monotonic())
        return step >= self._next

    def agree(self, step: int, interval: int) -> None:
        if interval > self._longest:
            self._longest = interval
            logger.info("one snapshot in memory in %d steps", interval)
        self._next = (step // interval + 1) * interval

    def took(self, cost: float) -> None:
        if self._measures:  # the first one takes longer: its memory is new
            self._own.took(cost, time.monotonic())
        self._measures = True


class _Position:
    """How far the training is, and the script's values, as a part of its state."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return self._state.position()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.go_to(state)
