"""Snapshots of shards in memory: each rank leaves its own with its agent, and all of them together are a state."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed.checkpoint as dcp

from elasticjob_runtime.training import checkpoint, progress
from elasticjob_runtime.training.checkpoint import CheckpointError
from elasticjob_runtime.training.checkpoint.directory import PathLike
from elasticjob_runtime.training.checkpoint.order import Choice, Held, choose
from elasticjob_runtime.training.memory import AgentMemory, Recovered, agent_memory_of_this_process
from elasticjob_runtime.training.sharded import ranks, storage
from elasticjob_runtime.training.sharded.contents import Contents
from elasticjob_runtime.training.sharded.reader import MemoryReader, plan_of

logger = logging.getLogger("elasticjob_runtime.training")

POLL = 0.005
"""s between two looks at what the agent has answered."""


class Shards:
    """The snapshots of one sharded state. Without an agent, there are none.

    All ranks keep the same steps: of a step that one of them lacks, nothing is of use.
    """

    def __init__(self, what: str) -> None:
        """what: the purpose, the same in a process that looks for the snapshots."""
        self._what = what
        self._memory: AgentMemory | None = agent_memory_of_this_process()

    @property
    def is_possible(self) -> bool:
        return self._memory is not None and not self._memory.refuses(self._what)

    def is_busy(self, contents: Contents) -> bool:
        """Whether this rank cannot take a snapshot yet: its memory is still being provided, or the one before is still
        being copied to the neighbour, which has no older one."""
        if self._memory is None or self._memory.refuses(self._what):
            return True
        return not self._memory.prepare(self._what, lambda: _shard(contents)) or self._memory.is_copying(self._what)

    def keep(self, contents: Contents, step: int, *, last: bool = False) -> None:
        """Takes this rank's part of a snapshot. Call it on all ranks, and only if none is busy."""
        if self._memory is not None and self._memory.keep(self._what, _shard(contents), step) is not None:
            self._memory.copy(self._what, step, last=last)

    def keep_last(self, contents: Contents, step: int, seconds: float) -> bool:
        """Takes a snapshot before a planned change, and returns whether it survives that: the shards of members that
        leave are at their neighbours then. False also if this is not possible within `seconds`. Collective."""
        until = time.monotonic() + seconds
        _wait_while(lambda: self.is_possible and self.is_busy(contents), until)
        if any(ranks.gather(self.is_busy(contents))):
            return False
        self.keep(contents, step, last=True)
        _wait_while(self._is_copying, until)
        return all(ranks.gather(self._is_safe()))

    def _is_copying(self) -> bool:
        return self._memory is not None and self._memory.is_copying(self._what)

    def _is_safe(self) -> bool:
        """Whether the snapshot of `keep_last` survives."""
        return self._memory is not None and self.is_possible and self._memory.was_copied(self._what)

    def restore(self, contents: Contents, path: PathLike | None) -> int | None:
        """Loads the newest state of which all shards exist: from memory, or a checkpoint in `path`. Returns its step;
        None: there is none. Collective. Raises CheckpointError on all ranks."""
        with self._found() as found:
            held = [each for those in ranks.gather([each.held for each in found]) for each in those]
            chosen = self._find(held, path)
            if isinstance(chosen, Choice):
                self._load(contents, chosen, found)
                return chosen.state.step
        if path is None or chosen is None:
            return None
        step = storage.load(path, chosen, contents)
        progress.remember_checkpoint(step)
        return step

    def _find(self, held: list[Held], path: PathLike | None) -> Choice | dict[str, Any] | None:
        if path is None:
            choice = choose(held, checkpoint.this_job(), shared=True)
            if ranks.rank() == 0 and held:
                logger.log(logging.INFO if choice.held else logging.WARNING, "%s", choice.why)
            checkpoint.continue_from(choice.state)
            return choice if choice.held else None
        newest = ranks.from_first(lambda: checkpoint.newest_state(path))
        if self._memory is not None:
            self._memory.continues(self._what, newest.claim)
        return storage.find(path, held)

    @contextlib.contextmanager
    def _found(self) -> Iterator[list[_Found]]:
        """The intact snapshots that this rank's agent holds for it."""
        recovered = self._memory.shards(self._what) if self._memory is not None else []
        try:
            found = []
            for snapshot, copied in recovered:
                state = snapshot.view() if snapshot.is_intact() else None
                if state is None:
                    logger.warning("the snapshot of step %d in memory is damaged", snapshot.step)
                    continue
                held = Held(
                    rank=ranks.rank(),
                    state=snapshot.state(checkpoint.this_job()),
                    shard=state["shard"],
                    of=state["of"],
                    copied=copied,
                )
                found.append(_Found(held, snapshot, state))
            yield found
        finally:
            for snapshot, _ in recovered:
                snapshot.close()

    def _load(self, contents: Contents, choice: Choice, found: list[_Found]) -> None:
        sources = choice.sources
        here = {one.held.shard: one for one in found if one.held == sources.get(one.held.shard)}
        plans = {
            shard: plan
            for each in ranks.gather({s: f.state["plan"] for s, f in here.items()})
            for shard, plan in each.items()
        }
        reader = MemoryReader(
            [plans[shard] for shard in range(len(sources))],
            {shard: held.rank for shard, held in sources.items()},
            {shard: one.state["data"] for shard, one in here.items()},
        )
        state = contents.collect_for(reader.read_metadata().state_dict_metadata)
        storage.run_dcp(
            lambda: dcp.load(state, storage_reader=reader), "The snapshot in memory does not fit this state"
        )
        if any(ranks.gather(any(own.recovered.is_replaced() for own in here.values()))):
            raise CheckpointError("A process of an earlier round still writes to the snapshots in memory.")
        contents.apply(state)


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    held: Held
    recovered: Recovered
    state: dict[str, Any]
    """Its tensors are in the snapshot's memory."""


def _wait_while(condition: Callable[[], bool], until: float) -> None:
    while condition() and time.monotonic() < until:
        time.sleep(POLL)


def _shard(contents: Contents) -> dict[str, Any]:
    plan, data = plan_of(contents.collect())
    return {"shard": ranks.rank(), "of": ranks.size(), "plan": plan, "data": data}
