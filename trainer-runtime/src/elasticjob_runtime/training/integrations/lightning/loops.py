"""Lightning's loops over epochs and batches, with a session.

Three things are taken as a whole, and repeated if the world changes meanwhile: a batch, a validation with what follows
it, and the end of an epoch. Before each of them, a process may enter another world. If it receives the state of a
training that is at another place then, it leaves the loops that it is in, and goes there.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer import call

from elasticjob_runtime.training.integrations.lightning.progress import AFTER, BATCH, END, INSIDE, START
from elasticjob_runtime.training.integrations.lightning.training import Training


def install(trainer: Any) -> None:
    """Changes the loops' classes, since the trainer has set them up already. Raises TypeError for loops of the user's
    own."""
    loop = trainer.fit_loop
    if type(loop) is ElasticFitLoop:
        return
    if type(loop) is not _FitLoop or type(loop.epoch_loop) is not _TrainingEpochLoop:
        raise TypeError("ElasticStrategy needs Lightning's own fit loop")
    loop.__class__, loop.epoch_loop.__class__ = ElasticFitLoop, ElasticEpochLoop


def _training(loop: Any) -> Training:
    training: Training = loop.trainer.strategy.training
    return training


class ElasticFitLoop(_FitLoop):
    def setup_data(self) -> None:
        with self.trainer.strategy.dealing():
            super().setup_data()

    @property
    def done(self) -> bool:
        training = self.trainer.strategy.training
        if training is not None and training.moves and training.progress.place in INSIDE:
            return False
        return bool(super().done)

    def on_advance_start(self) -> None:
        training = _training(self)
        if training.moves and training.progress.place in INSIDE:
            self.setup_data()
            call._call_callback_hooks(self.trainer, "on_train_epoch_start")
            call._call_lightning_module_hook(self.trainer, "on_train_epoch_start")
        else:
            training.moves = False
            super().on_advance_start()
        training.arrive()

    def advance(self) -> None:
        training = _training(self)
        if training.moves and training.progress.place == END:
            training.moves = False
            return
        super().advance()
        if not training.moves:
            training.progress.place = END

    def on_advance_end(self) -> None:
        training = _training(self)

        def end_epoch() -> None:
            super(ElasticFitLoop, self).on_advance_end()
            training.progress.place = START

        while not training.moves and training.enter_newest_world(END):
            if training.session.take_without_batch(end_epoch):
                return


class ElasticEpochLoop(_TrainingEpochLoop):
    def reset(self) -> None:
        training = _training(self)
        if not training.moves:
            super().reset()
            training.progress.place = BATCH

    def on_run_start(self, data_fetcher: Any) -> None:
        super().on_run_start(data_fetcher)
        training = _training(self)
        if training.progress.place == BATCH:
            training.moves = False

    @property
    def done(self) -> bool:
        training = self.trainer.strategy.training
        if training is not None and training.moves:
            return False
        done: bool = super().done
        return done

    def advance(self, data_fetcher: Any) -> None:
        training = _training(self)
        if training.moves:  # to the end of this batch
            training.moves = False
            return
        if self._resumes_after_batch(data_fetcher):
            super().advance(data_fetcher)
            training.progress.place = AFTER
            return

        def train() -> None:
            super(ElasticEpochLoop, self).advance(data_fetcher)
            training.progress.place = AFTER

        while training.fetch(BATCH):
            data_fetcher.fetched, data_fetcher.done = self.batch_progress.current.ready, False
            if training.session.take(train):
                return
        raise StopIteration  # to where the training is

    def on_advance_end(self, data_fetcher: Any) -> None:
        training = _training(self)
        if not self._should_check_val_fx(data_fetcher):
            super().on_advance_end(data_fetcher)
            training.progress.place = BATCH
            return

        def validate() -> None:
            super(ElasticEpochLoop, self).on_advance_end(data_fetcher)
            training.progress.place = BATCH

        while training.enter_newest_world(AFTER):
            if training.session.take_without_batch(validate):
                return
        raise StopIteration

    def _resumes_after_batch(self, data_fetcher: Any) -> bool:
        """From a checkpoint that Lightning has saved during a validation, or after it."""
        return bool(
            self.restarting
            and self._should_check_val_fx(data_fetcher)
            and (self.val_loop.restarted_mid_evaluation or self.restarted_on_last)
        )

    def _broadcast_sigterm_tensor(self) -> None:
        """Not at each batch: the agent tells all processes when one leaves."""
