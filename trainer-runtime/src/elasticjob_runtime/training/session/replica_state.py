"""The state of a training in replicas: each rank has a part of it, and so has the rank of that index in any other. If
there is no other, it is also kept in the memory of the agents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.save_load import PathLike
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.sharded import SharedSnapshots, contents_of
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
        self._contents = contents_of(self)
        # The same for all ranks, whose parts differ: after a loss, a rank looks for what another one has left.
        self._shards = Shards(f"replica {' '.join(parts.named)}")
        self._shared = SharedSnapshots(self._shards, self._contents)
        self._loaded = False
        """What was there before this process began."""
        self._saves_here = False
        self._before = (self.committed, self._live, self._origin)
        """What this rank said of its state before the world that it enters."""

    def process_state(self) -> ProcessState:
        """The first time, collective in this replica."""
        self._restore(None)
        self._before = (self.committed, self._live, self._origin)
        return super().process_state()

    def load(self, storage: Storage) -> None:
        """Collective."""
        self._storage = storage
        self._restore(storage.path)

    def _restore(self, path: PathLike | None) -> None:
        if not self._loaded:
            self._loaded = True
            self._shards.restore(self._contents, path)

    def agree(
        self,
        process_states: Sequence[ProcessState],
        interruption: Interruption | None = None,
        world: World | None = None,
        group: Any = None,
    ) -> None:
        super().agree(process_states, interruption, world, group)
        self._saves_here = world is not None and world.rank == 0
        # Not said by all ranks here: some of them may not come here, and form another world instead.
        self._shared = SharedSnapshots(self._shards, self._contents)
        self._shared.are_possible = world is not None and world.size == 1

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
        self._shared.keep(self.committed, lambda: None)

    def _save(self) -> None:
        assert self._storage is not None
        storage = self._storage
        saving.save(storage.path, self._contents, self.committed, storage.keep, block=storage.block)

    def save_last(self) -> None:
        """Collective in one replica."""
        storage = self._storage
        if storage is None or not self._live or (storage.block and self._saves_at(self.committed)):
            return
        try:
            saving.save(storage.path, self._contents, self.committed, storage.keep, block=True)
            logger.info("saved step %d, because all members leave", self.committed)
        except (CheckpointError, OSError) as error:
            logger.warning("step %d could not be saved before all members left: %s", self.committed, error)
