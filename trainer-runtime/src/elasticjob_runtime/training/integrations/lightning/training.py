"""`Training`: joins a trainer with a session, and `GlobalBatches`, which deals the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from elasticjob_runtime.training.integrations.lightning.progress import INSIDE, Lasting, LoopProgress, TrainerUndo
from elasticjob_runtime.training.session.adapter import AdapterSession, SessionError


class Training:
    """The adapter of one call of `trainer.fit`, from `on_train_start` on."""

    exists = False
    """One was made in this process."""

    def __init__(self, trainer: Any, batches: GlobalBatches) -> None:
        self._trainer = trainer
        self._batches = batches
        self.progress = LoopProgress(trainer)
        self._lasting = Lasting(trainer)
        self.session = self._new_session()
        batches.begin(self.session)
        self.moves = False
        """This process has received the state of a training that is elsewhere in the loops, and goes there."""
        self._here = 0
        """The epoch in whose loop this process is, as Lightning counts those that were begun."""

    def _new_session(self) -> AdapterSession:
        trainer = self._trainer
        strategy = trainer.strategy
        parts = {f"optimizer_{index}": optimizer for index, optimizer in enumerate(trainer.optimizers)}
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        parts |= {f"scheduler_{index}": scheduler for index, scheduler in enumerate(schedulers)}
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        session = AdapterSession(self, model=strategy.model, scaler=scaler, progress=self.progress, **parts)
        session.leave_planned_changes()  # to an ElasticCallback
        if session.continues_in_place and Training.exists:
            raise SessionError("a process that continues in place can call fit once")
        Training.exists = True
        return session

    def begin(self) -> None:
        """Enters the first world. A process that joins a training has its state afterwards."""
        before = self.progress.counters
        self.session.enter_newest_world()
        if not self.progress.received:
            return
        self.progress.received = False
        fit_loop = self._trainer.fit_loop
        if self.progress.place in INSIDE:
            self.moves = True
        elif self.progress.counters == before:
            return
        elif fit_loop.epoch_progress.current.ready != fit_loop.epoch_progress.current.completed:
            raise SessionError(
                "another process continues from a checkpoint that this one has not found: all of them must mount the "
                "directory of ckpt_path"
            )
        for loop in (fit_loop, fit_loop.epoch_loop, fit_loop.epoch_loop.val_loop):
            loop.on_iteration_done()  # what a checkpoint may have said about where to restart

    def arrive(self) -> None:
        """This process is in the loop of the epoch that the counters are about."""
        self._here = self._trainer.fit_loop.epoch_progress.total.ready

    def enter_newest_world(self, place: str) -> bool:
        """Enters the world of the newest plan. False if the training is at another place than `place` afterwards."""
        self.session.enter_newest_world()
        return self._is_at(place)

    def fetch(self, place: str) -> bool:
        """The same, and gets the batch of the next step."""
        if not self.enter_newest_world(place):
            return False
        self._batches.fetch(self._trainer.fit_loop.epoch_progress.current.processed)
        if self._is_at(place):
            return True
        self.session.withdraw_batch()
        return False

    def _is_at(self, place: str) -> bool:
        if not self.progress.received:
            return True
        self.progress.received = False
        here = self.progress.place == place and self._trainer.fit_loop.epoch_progress.total.ready == self._here
        self.moves = not here
        return here

    # -- what a session asks of an adapter

    def steps(self) -> int:
        return int(self._trainer.global_step)

    def entered(self) -> None:
        self._trainer.strategy.world_changed()

    def remember(self, *, batch: bool) -> Callable[[], None]:
        """A validation and the end of an epoch also change callbacks and schedulers."""
        undo, place = TrainerUndo(self._trainer, self._lasting, callbacks=not batch), self.progress.place

        def put_back() -> None:
            self.progress.place, self.progress.received = place, False  # what the session has restored is its own
            undo.restore()
            if not batch:
                self._trainer.training = True

        return put_back


class GlobalBatches:
    """Stands in for the training's DataLoader: yields this rank's share of each global batch."""

    def __init__(self, loader: object, batch_size: int, seed: int) -> None:
        """Raises TypeError or ValueError for a loader whose samples cannot be dealt."""
        if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, Sized):
            raise TypeError(
                "ElasticStrategy deals samples by their index: it needs a DataLoader, of a data set with a length"
            )
        if loader.worker_init_fn is not None:
            raise ValueError("ElasticStrategy makes loader processes of its own: it does not support worker_init_fn")
        self._options: dict[str, Any] = {
            "batch_size": batch_size, "num_workers": loader.num_workers, "collate_fn": loader.collate_fn, "seed": seed,
            "shuffle": _shuffles(loader), "drop_last": loader.drop_last,
        }  # fmt: skip
        self._dataset: Sized = loader.dataset
        self._epoch = -1
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._state: dict[str, Any] = {}
        """Of a checkpoint that was loaded before the session began."""
        self._session: AdapterSession | None = None

    def begin(self, session: AdapterSession) -> None:
        self._session = session
        if self._state:
            session.load_state_dict(self._state)

    def fetch(self, epoch: int) -> None:
        """Gets the next batch, after which the session may be in another world."""
        assert self._session is not None
        if epoch != self._epoch:
            self._batches, self._epoch = self._session.batches(self._dataset, epoch=epoch, **self._options), epoch
        self._batch = next(self._batches, None)

    # -- for Lightning

    def __len__(self) -> int:
        size, batch = len(self._dataset), self._options["batch_size"]
        return int(size // batch if self._options["drop_last"] else -(-size // batch))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._batch

    def state_dict(self) -> dict[str, Any]:
        return self._state if self._session is None else self._session.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state


def _shuffles(loader: Any) -> bool:
    sampler = loader.sampler
    if loader.batch_size is None or not isinstance(sampler, (DistributedSampler, RandomSampler, SequentialSampler)):
        raise ValueError(
            "ElasticStrategy deals the samples itself: the training's DataLoader must not have a sampler of its own"
        )
    return sampler.shuffle if isinstance(sampler, DistributedSampler) else isinstance(sampler, RandomSampler)
