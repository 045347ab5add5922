"""The state that all processes of a training share: what the user gave to the session, and how far it is."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training import progress
from elasticjob_runtime.training.checkpoint import (
    CheckpointError,
    FencedError,
    continue_from,
    newest_state,
    this_job,
)
from elasticjob_runtime.training.checkpoint.order import NO_FENCE, NOTHING, Kind, State
from elasticjob_runtime.training.checkpoint.reading import UnreadableError
from elasticjob_runtime.training.checkpoint.save_load import PathLike, find_durable, save_durable
from elasticjob_runtime.training.save_request import member_stays, seconds_to_save, session_ends
from elasticjob_runtime.training.session import randomness, torch_reducer
from elasticjob_runtime.training.session.feed import AnyOrder, Cursor, Share, beginning, saved_order
from elasticjob_runtime.training.session.interruption import Interruption
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.snapshots import Snapshots
from elasticjob_runtime.training.session.source_states import SourceStates
from elasticjob_runtime.training.session.transfer import share, share_until
from elasticjob_runtime.training.session.values import Values
from elasticjob_runtime.training.session.world import (
    BEHIND,
    BETWEEN_STEPS,
    NO_STATE,
    ProcessState,
    SessionError,
    World,
    agree,
    are_together,
)
from elasticjob_runtime.training.sharded import ranks

logger = logging.getLogger("elasticjob_runtime.training")

SHARE_FOR_MEMORY = 0.5
"""Of the time to save before a planned change. What is left is for storage, if memory does not suffice."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """Where checkpoints are, and how often to save one."""

    path: PathLike
    every: int
    """Steps; 0: never."""
    keep: int
    block: bool = True
    """Whether the training waits until a checkpoint is written."""


class TrainingState:
    def __init__(self, parts: Parts, *, snapshots: bool = True) -> None:
        self.parts = parts
        self.values = Values(parts.memory)
        self.cursor = Cursor()
        self._order: AnyOrder | None = None
        """Of the epoch that `cursor` is in, as far as it is known."""
        self.ends_epoch = False
        """Whether the step that was just committed is the last one of its epoch, and the script has not done yet what
        it does at the end."""
        self.sources = SourceStates()
        self._random: list[dict[str, Any]] | None = None
        """Of all ranks: while they save, and after a checkpoint was loaded until all are there. See `randomness`."""
        self.committed = NO_STATE
        self.evaluation = 0
        """See `State`."""
        self.together = True
        """Whether all processes were at the same place in the script when the world began."""
        self.joined = False
        """Whether this process came to others that trained already when it last entered a world."""
        self._awaits = False
        """Whether others have the state, and are about to change it outside of a step."""
        self.is_behind = False
        """Whether this process was in an evaluation, or at the end of an epoch, when the world began, and has received
        the state of others that had passed it."""
        self.changes_outside = False
        """Whether the script has changed parameters, or the state of optimizers, between two steps so far."""
        self.evaluation_of_others = 0
        """In which those that had the state were when the world began; see `State`."""
        self._live = False
        self._received = False
        """Whether this process has received a state since it last said how far it is."""
        self._layout = parts.layout()
        self._origin = NOTHING
        """Job, fence and choice of this state."""
        self._unreadable: UnreadableError | None = None
        """Of the newest checkpoint, until it has become clear whether something newer is there."""
        self._snapshots = Snapshots(self._layout, enabled=snapshots)
        self._storage: Storage | None = None
        self.saves_before_changes = False
        """Whether it asks for planned changes after each step, and saves before them."""
        self._ends = False
        """All is saved for a planned change."""

    def process_state(self) -> ProcessState:
        """Of this process's state, or of what is newer: in memory, which is not loaded yet, or cannot be read."""
        self._received = False
        in_memory = self._snapshots.held
        state = dataclasses.replace(self._origin, step=self.committed)
        if self._unreadable is not None:
            state = self._unreadable.state
        elif in_memory is not None:
            state = in_memory.state
        kind = Kind.LIVE if self._live else Kind.STORAGE
        return ProcessState(
            state=dataclasses.replace(state, kind=kind, evaluation=BEHIND if self._awaits else self.evaluation),
            layout=self._layout,
            unreadable=str(self._unreadable or ""),
        )

    def begin_epoch(self, epoch: int | None, order: AnyOrder, *, restart: bool) -> int:
        """See `feed.beginning`. Returns the epoch; None: the current one."""
        wanted = self.cursor.epoch if epoch is None else epoch
        if wanted >= self.cursor.epoch:
            self.cursor = beginning(self.cursor, self._order, wanted, order, restart=restart)
            self._order = order
        return wanted

    def position(self) -> dict[str, Any]:
        """How far the training is, and the script's values: plain data and tensors."""
        cursor = Cursor(epoch=self.cursor.epoch - 1, over=True) if self.ends_epoch else self.cursor
        return {
            "step": max(self.committed, 0),
            "epoch": cursor.epoch,
            "consumed": cursor.consumed,
            "digests": list(cursor.digests),
            "over": cursor.over,
            "sources": self.sources.state_dict(),
            "order": dataclasses.asdict(self._order) if self._order is not None else None,
            "values": self.values.state_dict(),
            "changes_outside": self.changes_outside,
            "random": self._random,
        }

    def go_to(self, position: Mapping[str, Any]) -> None:
        """position: see `position`."""
        self.values.load_state_dict(position["values"])
        self.committed = int(position["step"])
        self.cursor = Cursor(
            epoch=int(position["epoch"]),
            consumed=int(position["consumed"]),
            digests=tuple(position.get("digests", ())),
            over=bool(position.get("over", False)),
        )
        self.changes_outside = bool(position.get("changes_outside", False))
        self.sources.load_state_dict(position.get("sources", {}))
        order = position.get("order")  # None: of an adapter, or saved by an earlier version
        self._order = saved_order(order) if order is not None else None
        self._random = position.get("random")

    def commit(self, taken: Share) -> None:
        """Raises TypeError or ValueError for a value of the script that cannot be kept."""
        self.values.commit()
        self.committed += 1
        self.cursor = taken.next

    def tear(self) -> None:
        """A step has changed part of the state, and cannot be undone."""
        self.committed, self._live, self._origin = BETWEEN_STEPS, False, NOTHING

    def agree(
        self,
        process_states: Sequence[ProcessState],
        interruption: Interruption | None = None,
        world: World | None = None,
        group: Any = None,
    ) -> None:
        """Collective: all processes have the same state afterwards. interruption, world, group: if this process may
        have several.

        Raises SessionError in a process whose models are not those of the training, and in all if none has the state.
        Raises CheckpointError in all if none can read it.
        """
        agreement = agree(process_states, this_job())
        self.together = are_together(process_states)
        chosen = process_states[agreement.sources[0]]
        continue_from(chosen.state, only=True)
        rank = world.rank if world is not None else ranks.rank()
        if rank in agreement.strangers:
            raise SessionError(
                f"the models of rank {rank} have other parameters or buffers than those of rank "
                f"{agreement.sources[0]}, which has the state: all ranks must build the same models"
            )
        if interruption is not None:
            self.parts.forget_gradients()
            for ddp in self.parts.ddp:
                torch_reducer.rebuild(ddp)
        self.joined = chosen.is_live and not self._live
        if rank in agreement.sources:
            self._load_from_memory()
        given = self.collect() if rank in agreement.sources and agreement.receivers else None
        into = None
        if rank in agreement.receivers and self.committed == NO_STATE and chosen.is_live:
            self.parts.use_spares()
            into = self.collect()
            self.tear()
        self._received = rank in agreement.receivers and chosen.state.step >= 0
        receives = rank not in agreement.sources
        self.is_behind = receives and 0 != self.evaluation != chosen.state.evaluation
        self.evaluation_of_others = chosen.state.evaluation
        self._awaits = receives and chosen.state.evaluation > 0 and not self.together
        if interruption is not None:
            received = share_until(interruption, group, agreement, rank, given, into=into)
        else:
            received = share(dist.group.WORLD, agreement, rank, given, into=into)
        if received is not None:
            self.apply(received)
            if chosen.is_live:
                self.parts.train(received.get("trained", ()))
        self.committed = max(self.committed, 0)
        self._live, self._origin, self._unreadable = True, chosen.state, None
        self._restore_random()
        if world is not None:
            fence = world.environment.get(Env.FENCE, "")
            self._origin = dataclasses.replace(
                self._origin, job=this_job(), fence=Fence.parse(fence) if fence else NO_FENCE
            )
        self.parts.spare.clear()
        self._snapshots.entered()

    def give_up(self, all_of_replica: Callable[[bool], bool]) -> None:
        """A rank of this process's replica could not enter the world."""

    def keep(self) -> None:
        """Saves on storage and takes a snapshot in memory, each if it is time for that, or before a planned change."""
        ends = self.saves_before_changes and session_ends()
        saves = self._saves_at(self.committed)
        if saves or ends:
            self._collect_random()
        if saves and ends:
            _despite_earlier(self._save)
        elif saves:
            self._save()
        if ends:
            self._keep_last()
        else:
            self._snapshots.committed(self.committed, self.collect)
        self._random = None

    def _collect_random(self) -> None:
        """Where processes continue in place, others may be elsewhere, so only one that is alone keeps its own."""
        if self.saves_before_changes or ranks.size() == 1:
            with contextlib.suppress(RuntimeError):  # a rank is lost, and this checkpoint the more needed
                self._random = ranks.gather(randomness.state())

    def _restore_random(self) -> None:
        """Only if there are as many ranks as before. Another number trains on other shares of the data, too."""
        found, self._random = self._random, None
        if found is not None and len(found) == ranks.size():
            randomness.restore(found[ranks.rank()])

    def _keep_last(self) -> None:
        """The worker group is about to change: the next one continues after this step."""
        self._ends = True
        step = self.committed
        try:
            kept = self._take_last(SHARE_FOR_MEMORY * seconds_to_save())
            if not kept and self._saves_at(step):
                self._finish_save()
            elif not kept and self._saves:
                _despite_earlier(self._save)
            elif not kept and (not dist.is_initialized() or dist.get_rank() == 0):
                logger.warning(
                    "step %d could not be kept in memory before this change, and the session has no checkpoints on "
                    "storage: the steps since the last snapshot may be repeated",
                    step,
                )
        except FencedError:
            raise
        except (CheckpointError, RuntimeError, OSError) as error:  # of a rank that has been killed meanwhile, say
            logger.warning("step %d could not be saved before this change: %s", step, error)

    def save_last(self) -> None:
        """On storage, for all processes: they end."""
        storage = self._storage
        if storage is None or not self._live or (storage.block and self._saves_at(self.committed)):
            return
        self._collect_random()
        try:
            _despite_earlier(lambda: save_durable(storage.path, self.collect(), self.committed, storage.keep))
            logger.info("saved step %d, because all members leave", self.committed)
        except (CheckpointError, OSError) as error:
            logger.warning("step %d could not be saved before all members left: %s", self.committed, error)
        self._random = None

    def _take_last(self, seconds: float) -> bool:
        """Keeps the state in memory, and returns whether it survives the change there. False also if that is not
        possible within `seconds`."""
        return self._snapshots.take_last(self.committed, self.collect, seconds) and member_stays()

    def _finish_save(self) -> None:
        """Makes sure that the checkpoint of this step, which has begun, is written before this process ends."""
        # The next call of `session_ends` waits for it.

    def take_snapshot(self) -> None:
        """In memory, also if it is not time for that."""
        self._snapshots.take(self.committed, self.collect)

    def before_step(self) -> None:
        """The script asks for the next batch. Does not return if the worker group ends before that step."""
        if self._ends:
            self._ends = False  # in case that the agent does not end this process
            session_ends()  # says that nothing is left to save

    @property
    def _saves(self) -> bool:
        return self._storage is not None and self._storage.every > 0

    def _saves_at(self, step: int) -> bool:
        return self._storage is not None and self._storage.every > 0 and step % self._storage.every == 0

    def _load_from_memory(self) -> None:
        """If this process stood for what is there."""
        if self._snapshots.found is not None:
            self.apply(self._snapshots.load())

    def collect(self) -> dict[str, Any]:
        return {
            **self.position(),
            "trained": self.parts.trained(),
            "parts": self.parts.collect(),
        }

    def continue_from(self, saved: State, cursor: Cursor) -> None:
        """The rest of the state is loaded from a checkpoint by someone else."""
        self.committed, self.cursor, self._origin = saved.step, cursor, saved
        self._snapshots.compare(saved)

    def load(self, storage: Storage) -> None:
        """Continues from the newest checkpoint there, if there is one, and memory has nothing newer. Raises
        CheckpointError; one that cannot be read is an error later, unless another process has it or something newer."""
        self._storage = storage
        newest, in_memory = newest_state(storage.path), self._snapshots.held
        self._snapshots.continues(newest.claim)
        if newest.step >= 0:
            progress.remember_checkpoint(newest.step)
        try:
            found, checkpoint = find_durable(storage.path, memory=in_memory, read_memory=lambda: in_memory)
        except UnreadableError as error:
            self._unreadable = error
            return
        if checkpoint is None or found.kind is Kind.MEMORY:
            return
        self._snapshots.forget()
        try:
            self.apply(checkpoint)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"The checkpoint of step {found.step} in {storage.path} does not fit the session: {reason}. "
                "Give it the same models and optimizers, or use another directory."
            ) from error
        self._origin = found

    def _save(self) -> None:
        assert self._storage is not None
        if not dist.is_initialized() or dist.get_rank() == 0:
            storage = self._storage
            save_durable(storage.path, self.collect(), self.committed, storage.keep, block=storage.block)

    def apply(self, state: dict[str, Any]) -> None:
        self.parts.apply(state["parts"])
        self.go_to(state)


def _despite_earlier(save: Callable[[], None]) -> None:
    """Saves the last state. The error of an earlier save in the background is in the log, and raised only once; the
    training ends, so it must not prevent this one. If that is collective, all ranks raise, and save again."""
    try:
        save()
    except FencedError:
        raise
    except CheckpointError:
        save()
