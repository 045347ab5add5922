"""The state of a training in replicas: each rank has a part of it, and so has the rank of that index in any other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.sharded import contents_of
from elasticjob_runtime.training.session.state import Storage, TrainingState
from elasticjob_runtime.training.session.world import BETWEEN_STEPS, ProcessState, World
from elasticjob_runtime.training.sharded import saving
from elasticjob_runtime.training.sharded.memory import Shards

logger = logging.getLogger("elasticjob_runtime.training")


class ReplicaState(TrainingState):
    """The ranks of a replica load and save together; of all replicas, the first saves."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts, snapshots=False)
        self._layout = parts.layout(shards=True)
        self._saves_here = False
        self._before = (self.committed, self._live, self._origin)
        """What this rank said of its state before the world that it enters."""

    def process_state(self) -> ProcessState:
        self._before = (self.committed, self._live, self._origin)
        return super().process_state()

    def load(self, storage: Storage) -> None:
        """Collective."""
        self._storage = storage
        Shards(f"replica {self._layout}").restore(contents_of(self), storage.path)

    def agree(
        self,
        process_states: Sequence[ProcessState],
        interruption: Interruption | None = None,
        world: World | None = None,
        group: Any = None,
    ) -> None:
        super().agree(process_states, interruption, world, group)
        self._saves_here = world is not None and world.rank == 0

    def give_up(self, all_of_replica: Callable[[bool], bool]) -> None:
        """What this rank has received is of no use without what the others have not. That it was in this world does not
        count either: other ranks were not, and all must choose the same replica's state in the next."""
        if all_of_replica(not self._received and self.committed != BETWEEN_STEPS):
            self.committed, self._live, self._origin = self._before
        else:
            self.tear()

    def keep(self) -> None:
        if self._saves_here and self._saves_at(self.committed):
            self._save()

    def _save(self) -> None:
        assert self._storage is not None
        storage = self._storage
        saving.save(storage.path, contents_of(self), self.committed, storage.keep, block=storage.block)

    def save_last(self) -> None:
        """Collective in one replica."""
        storage = self._storage
        if storage is None or not self._live or (storage.block and self._saves_at(self.committed)):
            return
        try:
            saving.save(storage.path, contents_of(self), self.committed, storage.keep, block=True)
            logger.info("saved step %d, because all members leave", self.committed)
        except (CheckpointError, OSError) as error:
            logger.warning("step %d could not be saved before all members left: %s", self.committed, error)
