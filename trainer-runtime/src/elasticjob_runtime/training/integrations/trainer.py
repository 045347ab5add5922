"""For Hugging Face's Trainer: training that continues in place.

    trainer = ElasticTrainer(model, arguments, train_dataset=dataset, global_batch_size=256)
    trainer.train(resume_from_checkpoint=newest_checkpoint(arguments.output_dir))

Trainer's own loop over an epoch is replaced by one in steps of a session. What it calls is Trainer's, so subclasses may
override `compute_loss`, `training_step`, `evaluate` and the like.

All that decides what follows is part of the session's state (`TrainerProgress`): whether the step that was just taken
is to be logged, evaluated or saved, and how many epochs have ended. A process that joins at any moment therefore does
the same next as all others.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.state import PartialState
from transformers import ProgressCallback, Trainer, TrainerCallback, TrainerControl

from elasticjob_runtime.training.integrations.accelerate import AcceleratorSession, ElasticAccelerator
from elasticjob_runtime.training.integrations.trainer_progress import TrainerAdapter, TrainerProgress
from elasticjob_runtime.training.integrations.trainer_refusals import refusal
from elasticjob_runtime.training.integrations.trainer_saves import barrier_as
from elasticjob_runtime.training.integrations.transformers import ElasticCallback, newest_checkpoint
from elasticjob_runtime.training.session.adapter import Share

MicroBatches = list[tuple[int, dict[str, Any]]]
"""Of one rank's share of a global batch: samples, and what the data collator made of them."""


class ElasticTrainer(Trainer):
    """A `Trainer` whose processes continue when others are lost or join.

    global_batch_size: samples per step of all processes together, whatever their number. Each process takes its share
    in micro-batches of at most `per_device_train_batch_size`.

    Raises ValueError for what it does not support; use Trainer with `ElasticCallback` then, with which all processes
    restart at each change.
    """

    control: TrainerControl
    current_flos: Any
    loss_is_scaled_for_ga: bool | None
    _globalstep_last_logged: int

    def __init__(self, *args: Any, global_batch_size: int, **options: Any) -> None:
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size is of all processes together, and at least 1: {global_batch_size}")
        self._global_batch_size = global_batch_size
        self._session: AcceleratorSession | None = None
        self._restarts: ElasticCallback | None = None
        """None: it continues in place."""
        self._progress = TrainerProgress(self)
        super().__init__(*args, **options)
        self._given_scaling = self.loss_is_scaled_for_ga
        problem = refusal(self)
        if problem:
            raise ValueError(
                f"ElasticTrainer: {problem}. Trainer with ElasticCallback can do that, and restarts all processes at "
                "each change"
            )
        self.callback_handler.callbacks.insert(0, _Begin(self))

    # -- what Trainer calls

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = ElasticAccelerator  # Trainer names the class that it makes
        self.gather_function = functools.partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )

    def get_train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        """Only its length is used: batches of all processes together."""
        return torch.utils.data.DataLoader(
            self.train_dataset,
            batch_size=self._global_batch_size,
            drop_last=self.args.dataloader_drop_last,
            collate_fn=self.data_collator,
        )

    def get_total_train_batch_size(self, _args: Any) -> int:
        return self._global_batch_size

    def store_flos(self) -> None:
        """Each process counts those of all."""
        self.state.total_flos += float(self.current_flos)
        self.current_flos = 0

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        if self._session is not None:
            raise RuntimeError("an ElasticTrainer trains once: make another one in another process")
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        model = prepared[0]
        self._session = TrainerAdapter(self, self._progress, self._follow).new_session(
            model=model, optimizer=self.optimizer, scheduler=self.lr_scheduler, trainer=self._progress
        )
        self._session.save_at_end(functools.partial(self._save_last, model))
        self.pop_callback(ElasticCallback)
        if not self._session.continues_in_place:
            self._session.leave_planned_changes()
            self._restarts = ElasticCallback()
            self.add_callback(self._restarts)
        if resume_from_checkpoint is not None:
            self._load_rng_state(resume_from_checkpoint)
        return prepared

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with barrier_as(lambda: self._elastic_session.add_up(torch.zeros((), device=self.args.device))):
            super()._save_checkpoint(model, trial)

    def _save_last(self, model: Any) -> None:
        """All members leave. The next process continues here, and the others may have gone."""
        saved = newest_checkpoint(self.args.output_dir)
        if not self.state.global_step or (saved and saved.endswith(f"-{self.state.global_step}")):
            return
        PartialState().process_index = 0  # Trainer saves in the first process only
        with barrier_as(lambda: None):  # alone
            super()._save_checkpoint(model, None)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _run_epoch(
        self,
        *,
        model: Any,
        epoch: int,
        steps_in_epoch: int,
        trial: Any,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        **_: Any,
    ) -> None:
        log = functools.partial(self._log_step, start_time)
        report = functools.partial(self._report, model, trial, ignore_keys_for_eval, start_time)
        catch_up = functools.partial(self._catch_up, log, report)
        session, progress = self._elastic_session, self._progress
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True  # the checkpoint was the last one
        catch_up()
        if progress.ended > epoch or self.control.should_training_stop:
            return  # this process has joined later
        for batch in self._batches(epoch):
            if progress.is_pending(session.epoch):  # another process has committed the step that was interrupted here
                session.withdraw_batch()
            else:
                with session.step():
                    self._take(model, batch, epoch, steps_in_epoch)
            catch_up()
            if progress.ended > epoch:
                return
        catch_up()

    # -- inside

    @property
    def _elastic_session(self) -> AcceleratorSession:
        assert self._session is not None
        return self._session

    def _begin(self) -> None:
        """Enters the first world, and receives the state of those that train in it."""
        session, progress = self._elastic_session, self._progress
        progress.ended, progress.taken = divmod(self.state.global_step, max(1, len(self.get_train_dataloader())))
        session.begin_at(epoch=progress.ended, consumed=progress.taken * self._global_batch_size)

    def _follow(self) -> None:
        """This process is in another world."""
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.__dict__.pop("_eval_dataloaders", None)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback):
                if callback.prediction_bar is not None:
                    callback.prediction_bar.close()
                    callback.prediction_bar = None
                if self.state.is_world_process_zero and callback.training_bar is None:
                    callback.on_train_begin(self.args, self.state, self.control)

    def _batches(self, epoch: int) -> Iterator[MicroBatches]:
        args, dataset, collator = self.args, self.train_dataset, self.data_collator
        if _is_of_datasets(dataset):
            dataset = self._remove_unused_columns(dataset, description="Training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="Training")
        return self._elastic_session.batches(
            dataset,
            batch_size=self._global_batch_size,
            epoch=epoch,
            num_workers=args.dataloader_num_workers,
            drop_last=args.dataloader_drop_last,
            shuffle=args.train_sampling_strategy == "random",
            seed=args.seed if args.data_seed is None else args.data_seed,
            collate_fn=functools.partial(_in_micro_batches, collator, args.per_device_train_batch_size),
        )

    def _take(self, model: Any, batches: MicroBatches, epoch: int, steps_in_epoch: int) -> None:
        """What Trainer does in one step. Nothing communicates after `optimizer.step()`."""
        args, handler, share = self.args, self.callback_handler, self._elastic_session.share
        self.control = handler.on_step_begin(args, self.state, self.control)
        items = self._get_num_items_in_batch([_counted(inputs, share) for _, inputs in batches], args.device)
        self._elastic_session.weigh_processes()
        loss, operations = torch.zeros((), dtype=torch.float64, device=args.device), 0.0
        for index, (samples, inputs) in enumerate(batches):
            self._weigh_loss(samples, share, divided=items is not None)
            operations += float(self.floating_point_ops(inputs))
            if index == len(batches) - 1:
                self.accelerator.gradient_state._set_sync_gradients(True)
                loss += self.training_step(model, inputs, items)
            else:
                self.accelerator.gradient_state._set_sync_gradients(False)
                with self.accelerator.no_sync(model):
                    loss += self.training_step(model, inputs, items)
                self.control = handler.on_substep_end(args, self.state, self.control)
        counted = torch.stack([loss, torch.full_like(loss, operations)]) * bool(share.samples)
        self._elastic_session.add_up(counted)
        clipped = self._clip_grad_norm(model) if args.max_grad_norm > 0 else None
        self._progress.grad_norm = self._get_grad_norm(model, clipped)
        self.control = handler.on_pre_optimizer_step(args, self.state, self.control)
        self.optimizer.step()
        self.control = handler.on_optimizer_step(args, self.state, self.control)
        self._progress.learning_rate = self._get_learning_rate()
        if not self.accelerator.optimizer_step_was_skipped and not _needs_metrics(self.lr_scheduler):
            self.lr_scheduler.step()
        model.zero_grad()
        self._count(counted)
        self.state.global_step += 1
        self._progress.taken += 1
        self.state.epoch = epoch + self._progress.taken / steps_in_epoch
        self.control = handler.on_step_end(args, self.state, self.control)
        if self.control.should_epoch_stop or self.control.should_training_stop:
            self._progress.over = True

    def _weigh_loss(self, samples: int, share: Share, *, divided: bool) -> None:
        """Makes the losses of all micro-batches and processes add up to the mean over the global batch.

        divided: they are divided by the number of items in it. Otherwise each is a mean over `samples`, and Trainer
        divides it by `current_gradient_accumulation_steps`.
        """
        self.loss_is_scaled_for_ga = self._given_scaling if divided else False
        self.current_gradient_accumulation_steps = share.batch / (samples * self.accelerator.num_processes)

    def _count(self, counted: torch.Tensor) -> None:
        """All processes count the losses and operations of all, so that none of them is lost with a process."""
        loss = (counted[0] / self.accelerator.num_processes).to(self._tr_loss.dtype)
        if self.args.logging_nan_inf_filter and not torch.isfinite(loss):
            loss = self._tr_loss / (1 + self.state.global_step - self._globalstep_last_logged)
        self._progress.count(loss, counted[1])

    def _catch_up(self, log: Callable[[], None], report: Callable[[], None]) -> None:
        """Does all that is due between two steps. It depends on the session's state only."""
        session, progress = self._elastic_session, self._progress
        while True:
            session.enter_newest_world()
            if self.control.should_log:
                log()
            elif self.control.should_evaluate or self.control.should_save:
                report()
            elif progress.is_over(session.epoch):
                progress.end_epoch()
                self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            else:
                return

    def _log_step(self, start_time: float) -> None:
        self.control.should_log = False
        steps = self.state.global_step - self._globalstep_last_logged
        if steps <= 0:
            return
        loss = self._tr_loss.item()
        self._tr_loss.zero_()
        self._total_loss_scalar += loss
        self._globalstep_last_logged = self.state.global_step
        logs = {"loss": loss / steps}
        if self._progress.grad_norm is not None:
            logs["grad_norm"] = float(self._progress.grad_norm)
        logs["learning_rate"] = self._progress.learning_rate
        self.store_flos()
        self.log(logs, start_time)

    def _report(self, model: Any, trial: Any, ignore_keys: list[str] | None, start_time: float) -> None:
        """Evaluates and saves, in a step without a batch: if it is interrupted, all processes do it again."""
        if self._restarts is not None and self._restarts.is_last_save:
            self._keep_in_memory(evaluates=self._restarts.skips_evaluation)

        def report() -> None:
            self._maybe_log_save_evaluate(self._tr_loss, None, model, trial, self.state.epoch, ignore_keys, start_time)
            self.control.should_evaluate = self.control.should_save = False

        self._elastic_session.take_without_batch(report)

    def _keep_in_memory(self, *, evaluates: bool) -> None:
        """The processes that follow continue with what is in memory, and do there what is still due. The usual snapshot
        may be some steps old."""
        self.control.should_save, self.control.should_evaluate = False, evaluates
        self._elastic_session.take_snapshot()
        self.control.should_save, self.control.should_evaluate = True, False


class _Begin(TrainerCallback):
    """The first of all callbacks: the others see the state that the processes agree on."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._trainer._begin()


def _in_micro_batches(collator: Callable[[list[Any]], dict[str, Any]], size: int, samples: list[Any]) -> MicroBatches:
    parts = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [(len(part), collator(part)) for part in parts]


def _counted(inputs: dict[str, Any], share: Share) -> dict[str, Any]:
    """What Trainer counts the items of; none in a process that only takes part because DDP needs all."""
    if share.samples or "labels" not in inputs:
        return inputs
    return {**inputs, "labels": torch.full_like(inputs["labels"], -100)}


def _needs_metrics(scheduler: Any) -> bool:
    return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) or type(scheduler).__name__ == "GreedyLR"


def _is_of_datasets(dataset: Any) -> bool:
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(dataset, datasets.Dataset)
