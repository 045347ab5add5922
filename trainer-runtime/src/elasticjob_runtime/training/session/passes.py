"""The passes of a script's loop over its data: which batches it gets, in which world, and what counts of what it does
outside of steps."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from elasticjob_runtime.training.session import randomness
from elasticjob_runtime.training.session.data_parallel import check_samples
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.exchange import Exchange
from elasticjob_runtime.training.session.feed import AnyOrder, Cursor, Feed, Share
from elasticjob_runtime.training.session.interruption import OverError
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.pipelines import Pipelines
from elasticjob_runtime.training.session.refusals import in_replica
from elasticjob_runtime.training.session.replicas import Replicas
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.stream import StreamFeed
from elasticjob_runtime.training.session.world import EPOCH_ENDS, SessionError
from elasticjob_runtime.training.session.worlds import Worlds

AnyFeed = Feed | StreamFeed

Begin = Callable[[], tuple[AnyFeed, int]]
"""Begins or continues a pass over the data: what loads it, and the epoch."""

MOST_EVALUATIONS = 100
"""Between two batches, if they cannot take place: more are a loop that waits for a result."""

logger = logging.getLogger("elasticjob_runtime.training")


class Passes:
    def __init__(
        self,
        parts: Parts,
        state: TrainingState,
        steps: Steps,
        exchange: Exchange,
        worlds: Worlds,
        *,
        engine: Engine | None,
        replicas: Replicas | None,
    ) -> None:
        """engine: None if nothing interrupts the loop."""
        self._parts, self._state, self._steps = parts, state, steps
        self._exchange, self._worlds = exchange, worlds
        self._engine, self._replicas = engine, replicas
        self.offered: Share | None = None
        """The batch that the script has, until its step has ended."""
        self._left = False
        """The loop over batches was left before a step with `offered`, by `break`: it may still be used, or not."""
        self._failed: Exception | None = None
        """With what the script's last step has ended."""
        self._pipelines = Pipelines()
        self._compared = not (in_replica() or parts.are_sharded)
        """Whether the first batch was compared with that of other ranks. In place, a DDP rank joins others alone."""
        self._trained = False
        """Whether this process has got a batch that was not for a trial."""
        self._finished = -1
        """The last epoch through which this process has gone to its end."""
        self._met_in = 0
        """The world, as `Exchange` counts them, in which all have said in which epoch they go on."""
        self._evaluations = 0
        """Since the last batch."""
        self._outside: tuple[int, tuple[int, int]] | None = None
        """The world, and the versions of what optimizers have, when the script was last in a step or an evaluation.
        None: it still is, or that is not of interest."""

    # -- the batch in use

    @property
    def uses_batch(self) -> bool:
        """Whether the step with a batch is still to come, or in progress. No world begins meanwhile."""
        return self.offered is not None and not self._left

    def use(self, share: Share) -> None:
        """For the next step."""
        self.offered, self._left = share, False

    def end_step(self, error: Exception | None = None) -> None:
        """error: of the script's own."""
        self.offered, self._failed = None, error

    def _offer(self, batch: Any, share: Share) -> Any:
        self.use(share)
        self._pipelines.begin(self._exchange.world, len(share.positions))
        if not self._compared:
            self._compared = True
            check_samples(self._parts, share.positions, batch)
        return batch

    def _check_used(self) -> None:
        if self.offered is not None:
            self.offered = None
            raise SessionError("a batch of session.batches() was not used in a `with session.step():`")
        self._check_failed()

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise SessionError(
                f"a step has ended with {type(self._failed).__name__}, and the script went on: its batch would come "
                "again and again. Handle what you expect within the `with session.step():`"
            ) from self._failed

    # -- worlds

    def enter_newest_world(self, *, evaluation: int = 0) -> None:
        """Not while a batch is in use. evaluation: see `State`."""
        if not self.uses_batch:
            self.offered = None
            self._look_outside()
            self._worlds.enter_newest(evaluation=evaluation)

    def enter_first_world(self) -> None:
        """If this has not happened, unless a trial comes before. Later ones begin with a batch, and nowhere else, so
        that all processes are at the same place in the script then."""
        if not (self._worlds.formed or self._worlds.tries()):
            self.enter_newest_world()

    def meet_for_evaluation(self) -> bool:
        """Whether all processes can evaluate together now. Raises SessionError if the script waits for that in a
        loop."""
        if not self._worlds.formed or self._steps.is_over:
            if self.uses_batch:
                return False  # its step is interrupted, too, and then comes again
            self.enter_newest_world(evaluation=self._evaluations)
        if self._state.together:
            return True
        if self._state.is_behind:
            self._begin_together()
        if self._evaluations > MOST_EVALUATIONS:
            raise SessionError(
                "session.evaluate() was called again and again, while other processes are at the next batch: do not "
                "repeat it until there is a result, but go on with the next batch"
            )
        logger.info(
            "no result of the evaluation after step %d: not all processes are there, because one has joined, or has "
            "finished it already",
            self._state.committed,
        )
        return False

    def count_evaluation(self) -> None:
        """The script calls `session.evaluate`."""
        self._evaluations += 1
        if self._worlds.aside_until == self._evaluations:
            self._worlds.end_aside()

    def mark_outside(self) -> None:
        """From here to the next batch, the script is outside of steps and evaluations."""
        if self._engine is not None and self._outside is None and not self._worlds.aside:
            self._outside = self._exchange.world, self._parts.versions(states=True)

    def _look_outside(self) -> None:
        """Before the next batch: whether the script has changed what an optimizer has."""
        before, self._outside = self._outside, None
        if before is not None and before[0] == self._exchange.world:
            now = self._parts.versions(states=True)
            self._state.changes_outside = self._state.changes_outside or now != before[1]

    # -- the loop

    def check_epoch(self, epoch: int | None) -> None:
        """Raises SessionError if the script has gone through this one: it would train on nothing without knowing."""
        if epoch is not None and epoch <= self._finished:
            raise SessionError(
                f"epoch {epoch} is over, and has no batch for another pass over the data: give each pass an `epoch` of "
                "its own, or none"
            )

    def begin(self) -> None:
        """Before the first batch of a pass."""
        self._check_failed()
        if not self._worlds.tries():
            self.enter_newest_world()

    def batches(self, begin: Begin, feed: AnyFeed, epoch: int) -> Iterator[Any]:
        """This rank's batches in the rest of `epoch`."""
        worlds = self._worlds
        if worlds.others and self._state.cursor.epoch == epoch:
            with contextlib.closing(feed):
                yield from self._try(feed)
            self.enter_newest_world()
            feed, epoch = begin()
        if self._state.cursor.epoch > epoch and not self._trained and not worlds.others:
            worlds.set_aside()
        with contextlib.closing(feed):
            if not worlds.others:
                yield from self._batches_of(feed, epoch)

    def _try(self, feed: AnyFeed) -> Iterator[Any]:
        """A batch for a step on trial, of which nothing remains. It is as large as after this replica has joined: a
        compiled model would compile once more for another one."""
        random = randomness.state()
        self._worlds.place = self._worlds.find_place()
        found = feed.next(self._state.cursor, *self._worlds.place)
        if found is not None:
            logger.info("a step on trial, before this replica joins %d others", self._worlds.others)
            yield self._offer(*found)
            self._check_used()
        randomness.restore(random)

    def _batches_of(self, feed: AnyFeed, epoch: int) -> Iterator[Any]:
        state, compared = self._state, 0
        while state.cursor.epoch == epoch:  # before the world may change: see evaluate()
            self.enter_newest_world()
            if state.cursor.epoch != epoch:
                # Received from one that has gone on with the script, and has done what is done between two epochs.
                if self._replicas is None and state.evaluation_of_others != EPOCH_ENDS:
                    self._worlds.set_aside(until=state.evaluation_of_others)
                return
            if state.cursor.over:
                state.cursor, state.together = Cursor(epoch=epoch + 1), True
                self._worlds.end_aside()
                self._steps.repeats = False  # the last one, which others have committed
                return
            try:
                if compared != self._exchange.world:
                    if not self._goes_on_with_all(epoch, feed.order):
                        return
                    compared = self._exchange.world
                self._share_outside()
                found = feed.next(state.cursor, *self._worlds.place)
            except OverError:
                continue
            if found is None:  # with a larger batch size than before and drop_last, what is left is no batch
                state.cursor = Cursor(epoch=epoch + 1)
                break
            state.together, self._evaluations, self._worlds.aside, self._trained = True, 0, None, True
            try:
                yield self._offer(*found)
            except GeneratorExit:
                self._left = self.offered is not None
                self.mark_outside()
                raise
            self._end_batch(epoch)
        self._finished = epoch
        self.mark_outside()

    def _share_outside(self) -> None:
        """Those that had the state were in an evaluation when this world began, and the others were not. What the
        script has changed since then, where they were, counts for all."""
        state = self._state
        if (
            self._engine is not None
            and self._replicas is None
            and state.evaluation_of_others > 0
            and not state.together
        ):
            self._worlds.share_again()

    def _goes_on_with_all(self, epoch: int, order: AnyOrder) -> bool:
        """Whether all are in this epoch, with the same data. False: others have left it before its end, by `break`, and
        this process has joined them since. Raises if the data differ: see `Exchange.compare`. Collective. order: of
        this epoch."""
        if self._engine is not None and self._met_in != self._exchange.world:
            latest, is_same = self._exchange.meet(epoch, order)
            self._met_in = self._exchange.world
            if latest != epoch:
                self._state.cursor = Cursor(epoch=latest)
                self._worlds.set_aside()
                return False
            if is_same:
                return True
        self._exchange.compare(order, trained=self._trained)
        return True

    def _end_batch(self, epoch: int) -> None:
        self._check_used()
        if self._engine is None or self._state.cursor.epoch == epoch:
            return
        # All go on together: this process may end now, and another one, in which the last step was interrupted, need
        # it. What the script does at the end of the epoch is done after the state was sent.
        self._state.ends_epoch = True
        try:
            if self._replicas is not None:
                self._steps.meet()
            else:
                with contextlib.suppress(OverError):
                    self._exchange.largest([epoch])
            if self._steps.broken:
                self.enter_newest_world(evaluation=EPOCH_ENDS)
                self._begin_together()
        finally:
            self._state.ends_epoch = False

    def _begin_together(self) -> None:
        """All processes of this world are at the end of the same epoch, unless some have passed it."""
        if self._state.is_behind:
            self._state.is_behind = False
            self._worlds.set_aside(until=self._state.evaluation_of_others)
        else:
            self._state.together = True
