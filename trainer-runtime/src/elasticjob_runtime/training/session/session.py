"""`ElasticSession`: what a training script uses to continue in place."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import channel, progress
from elasticjob_runtime.training.channel import number
from elasticjob_runtime.training.checkpoint import DEFAULT_KEEP
from elasticjob_runtime.training.checkpoint.save_load import PathLike
from elasticjob_runtime.training.session import torch_reducer
from elasticjob_runtime.training.session.data_parallel import place_of
from elasticjob_runtime.training.session.engine import MAX_ATTEMPTS
from elasticjob_runtime.training.session.exchange import Exchange
from elasticjob_runtime.training.session.feed import Feed, LoaderOptions, Order, Share
from elasticjob_runtime.training.session.gradients import ShareWeight, interruptible
from elasticjob_runtime.training.session.interruption import OverError
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.passes import Passes
from elasticjob_runtime.training.session.refusals import in_replica, new_engine
from elasticjob_runtime.training.session.state import Storage, TrainingState
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.stream import StreamFeed, check_dataset, stream_order
from elasticjob_runtime.training.session.values import Values
from elasticjob_runtime.training.session.world import SessionError
from elasticjob_runtime.training.session.worlds import Worlds

T = TypeVar("T")


class ElasticSession:
    """Training that continues when the number of processes changes, without restarting those that remain.

        session = ElasticSession(model=ddp, optimizer=opt, scheduler=sched)
        for epoch in range(session.epoch, 10):
            for inputs, targets in session.batches(dataset, batch_size=256, epoch=epoch):
                with session.step():
                    loss = cross_entropy(ddp(inputs), targets)
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                    sched.step()

    Everything that a step changes belongs to the session: it takes anything with `state_dict` and `load_state_dict`,
    and `session.values` is a place for the rest.
    All communication belongs inside of `session.step()`, before the last `optimizer.step()`, or inside of
    `session.evaluate()`.

    A step that is interrupted because a process is lost ends silently at the end of its `with` block, and the loop
    then yields the same global batch again, dealt to the new world. The state of a lost process is not needed: all that
    remain have it. A joiner receives it from them. Code after the block runs for an interrupted step too: what must
    happen once per step, such as logging it, belongs at the end of the block.

    A replica that joins others takes its first step on trial, while they train on without it: it compiles and allocates
    then, and they need not wait for that. This step is interrupted after its `optimizer.step()`, and undone. The script
    goes through the epochs that are over then, without a batch; what it changes meanwhile is undone, too.

    Without an agent that supports this (plain python, torchrun, restarts by elasticrun), the same script trains in the
    world that it was started in.

    Not thread-safe.
    """

    _has_loop = True
    """Whether the loop over epochs is the script's."""

    def __init__(
        self, *, model: Any, optimizer: Any = None, scheduler: Any = None, data_parallel: Any = None, **others: Any
    ) -> None:
        """data_parallel: which ranks take different samples, as a DeviceMesh of one dimension or (rank, size). Without
        it, all of the process group do with DDP and FSDP, and none with tensor or pipeline parallelism alone.

        Raises TypeError if a part has no state, a model's DDP does not use the default process group, or the models
        cannot be trained in replicas.
        """
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **others}
        self._parts = Parts({name: part for name, part in given.items() if part is not None})
        for ddp in self._parts.ddp:
            if not torch_reducer.uses_default_group(ddp):
                raise TypeError("ElasticSession: a model in DistributedDataParallel must use the default process group")
            if torch_reducer.group_of_hook(ddp):
                raise TypeError(
                    "ElasticSession: a communication hook has a process group of its own, which ends with each change; "
                    "register it without one, and it uses the default group"
                )
        self._weight = ShareWeight(self._parts.ddp)
        self._state = _new_state(self._parts)
        self._callbacks: list[Callable[[ElasticSession], None]] = []
        self._engine, self._replicas = engine, replicas = new_engine(self._parts)
        self._steps = Steps(self._parts, self._state, engine)
        self._exchange = Exchange(self._steps, engine, replicas)
        self._worlds = Worlds(
            self._parts,
            self._state,
            self._steps,
            self._exchange,
            engine=engine,
            replicas=replicas,
            data_parallel=place_of(self._parts, data_parallel, in_replica=replicas is not None),
            save_last=self._save_last,
            entered=self._enter,
        )
        self._passes = Passes(
            self._parts, self._state, self._steps, self._exchange, self._worlds, engine=engine, replicas=replicas
        )
        self._state.saves_before_changes = engine is None
        if engine is not None:
            interruptible(self._parts.ddp, self._weight, engine.communicate, engine.wait)

    # -- the world

    @property
    def rank(self) -> int:
        """May change with every batch."""
        self._passes.enter_first_world()
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        self._passes.enter_first_world()
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0, of the first replica if there are several, which logs and saves."""
        return self.rank == 0 and self.replica == 0

    @property
    def replica(self) -> int:
        """This process's replica among those that train together, from 0. May change with every batch."""
        self._passes.enter_first_world()
        return self._worlds.replica[0]

    @property
    def replicas(self) -> int:
        """How many replicas train together: 1 without `--replica-size`. May change with every batch."""
        self._passes.enter_first_world()
        return self._worlds.replica[1]

    @property
    def round(self) -> int:
        """The number of the agent's plan; 0 without an agent."""
        self._passes.enter_first_world()
        return number(Env.ROUND)

    def on_change(self, callback: Callable[[ElasticSession], None]) -> None:
        """Calls `callback(session)` in every process after each change, for example to scale the learning rate."""
        self._callbacks.append(callback)

    # -- progress

    @property
    def committed_steps(self) -> int:
        """Steps that are part of the training, in whatever worlds."""
        self._passes.enter_first_world()
        return max(self._state.committed, 0)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch. After a restart from a checkpoint of the last step of an epoch, it is that
        epoch, which has no more batches: so the script does what it does at its end, which the checkpoint has not."""
        self._passes.enter_first_world()
        return self._state.cursor.epoch

    @property
    def values(self) -> Values:
        """The script's own values, for all that must be the same in every process and outlive it: the best accuracy so
        far, a counter for early stopping, an average of the weights. A dict of None, bool, int, float, str, bytes,
        tensors, and lists, tuples and dicts of these, which may be changed in place.

            session.values.setdefault("best", 0.0)
            session.values["best"] = max(session.values["best"], accuracy)

        They are committed with each step, saved in its checkpoint, and sent to joiners. What a step that is interrupted
        has changed is undone. What is changed between two steps belongs to the next one. Change them on all ranks
        alike: those of one rank count.

        A TypeError names a value that cannot be kept, when it is set or at the end of the step. A tensor of the model
        is copied when it is set.
        """
        self._passes.enter_first_world()
        return self._state.values

    @property
    def weight(self) -> float:
        """By what to multiply the mean loss of this rank's share if the model has a communication hook of its own,
        or is sharded (FSDP2). Otherwise the session weights the gradients: shares may differ by a sample."""
        assert self._passes.offered is not None, "only between batches() and the end of step()"
        return self._passes.offered.weight(self._worlds.size)

    def batches(
        self,
        dataset: Any,
        *,
        batch_size: int,
        epoch: int | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        restart_epoch: bool = False,
        **loader: Any,
    ) -> Iterator[Any]:
        """Yields this rank's share of each global batch in the rest of the epoch (default: the current one).

        batch_size: of the global batch, whatever the number of ranks. Ranks beyond it add nothing. Every sample of the
        epoch is in exactly one committed step, also those of a short last batch, unless `drop_last`. Nothing is yielded
        for an epoch that is over, as for a process that joins in a later one.

        An epoch that began before, in a checkpoint, goes on with its next sample, also with another batch size. With
        another seed, `shuffle` or size of the data set, the next sample is unknown: a SessionError says what differs.
        restart_epoch: True begins such an epoch again instead, on all ranks.

        collate_fn, and in `loader` num_workers, prefetch_factor, pin_memory, worker_init_fn: as of torch's DataLoader.

        Raises TypeError for a data set without a length (see `stream`), ValueError for a batch size with which there is
        no batch, and SessionError if a batch was not used in a `session.step()`, if this step ended with an error, and
        for an epoch through which this process has gone already.
        """
        self._begin_pass(epoch)
        check_dataset(dataset)
        if batch_size < 1:
            raise ValueError(f"batch_size is of all ranks together, and at least 1: {batch_size}")
        if drop_last and len(dataset) < batch_size:
            raise ValueError(f"with drop_last, a data set of {len(dataset)} has no batch of {batch_size}")
        order = Order(size=len(dataset), batch_size=batch_size, drop_last=drop_last, shuffle=shuffle, seed=seed)
        options = LoaderOptions(**loader)

        def begin() -> tuple[Feed, int]:
            wanted = self._state.begin_epoch(epoch, order, restart=restart_epoch)
            return Feed(dataset, order, epoch=wanted, collate_fn=collate_fn, options=options), wanted

        return self._passes.batches(begin, *begin())

    def stream(
        self,
        open: Callable[[int, int], Iterable[Any]],  # noqa: A002
        *,
        streams: int,
        batch_size: int,
        epoch: int | None = None,
        lengths: int | Sequence[int] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        restart_epoch: bool = False,
        **loader: Any,
    ) -> Iterator[Any]:
        """As `batches`, for data without a length. Yields this rank's share of each global batch in the rest of the
        epoch. Every sample is in exactly one committed step, whatever the number of ranks.

            def open(stream, epoch):
                return tokenized(shards[stream::16], seed=epoch)    # any iterable

            for batch in session.stream(open, streams=16, batch_size=256, epoch=epoch):

        open: `open(stream, epoch)` returns the items of one of the `streams` streams in that epoch, the same ones in
        the same order each time: after a change, another rank may open the stream, and skips what has been trained on.
        The ranks take turns: stream s belongs to rank s modulo the number of ranks. So `streams` should be a multiple
        of all numbers of ranks that there may be, and `batch_size` one of `streams`. Sample n of an epoch is item
        n // streams of stream n % streams.

        The epoch ends with the first sample that is not there, and so about when the shortest stream does. lengths: how
        many items each stream has, or all of them; then every item is used.

        If what `open` returns has `state_dict` and `load_state_dict` (a data set of Hugging Face, a loader of
        torchdata), they make skipping fast. What they restore is compared with what was trained on.

        All other arguments are those of `batches`. `collate_fn` runs in this process.

        Raises TypeError or ValueError for wrong arguments. Raises SessionError if a stream is not deterministic, ends
        before its length, or has no items, if `drop_last` leaves no batch, and as `batches`.
        """
        self._begin_pass(epoch)
        order = stream_order(open, streams, lengths, batch_size=batch_size, drop_last=drop_last)
        options = LoaderOptions(**loader)

        def begin() -> tuple[StreamFeed, int]:
            wanted = self._state.begin_epoch(epoch, order, restart=restart_epoch)
            feed = StreamFeed(
                open,
                order,
                epoch=wanted,
                batch_size=batch_size,
                drop_last=drop_last,
                collate_fn=collate_fn,
                options=options,
                sources=self._state.sources,
                ranks=self._exchange,
            )
            return feed, wanted

        return self._passes.batches(begin, *begin())

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step, from the first use of the batch to the last change of the state. It is committed at the end.

        An exception of the script's own ends the training as without a session. Accumulate gradients within one step:
        it begins without gradients if it is repeated.
        """
        offered, error = self._passes.offered, None
        if offered is None:
            raise SessionError("session.step() needs a batch from session.batches() for each step")
        self._weight.begin(offered, self._worlds.size)
        try:
            with self._steps.take(functools.partial(self._commit, offered), trial=bool(self._worlds.others)):
                yield
        except Exception as raised:
            error = raised
            raise
        finally:
            self._passes.end_step(error)

    def reduce_gradients(self) -> None:
        """Makes gradients the mean over the replicas: after the last backward() of a step, and before clipping. Does
        nothing for those that FSDP2 reduces, nor without replicas, so a script may always call it."""
        if self._replicas is not None:
            self._replicas.reduce_gradients()

    def evaluate(self, function: Callable[[], T]) -> T | None:
        """What `function` returns, which may communicate with all ranks between two steps: a mean accuracy, say. With
        replicas, each evaluates by itself, and `function` communicates with the ranks of this one.

        If the world changes in the midst of it, `function` is called again in the new one. A planned change waits for
        its end, 20 s at most (two thirds of --arrive-timeout).

        None, on all ranks, if they cannot evaluate together: the last step was interrupted, and is taken again first;
        or some of them are elsewhere in the script, as one that joins in the midst of an evaluation. Then go on with
        the next batch. Raises SessionError if it is called again and again instead.
        """
        steps, passes = self._steps, self._passes
        if self._worlds.aside is not None or self._worlds.tries():
            passes.count_evaluation()
            return None
        if steps.repeats:
            if self._replicas is None and steps.is_over:
                passes.enter_newest_world()
            steps.repeats = False
            return None
        if self._replicas is not None:
            passes.enter_first_world()
            return steps.evaluate(function)
        passes.count_evaluation()
        for _ in range(MAX_ATTEMPTS):
            if not passes.meet_for_evaluation():
                return None
            with contextlib.suppress(OverError):
                result = steps.evaluate(function)
                passes.mark_outside()
                return result
        raise SessionError(f"an evaluation was interrupted {MAX_ATTEMPTS} times in a row: {steps.broken}")

    def checkpoint(self, path: PathLike, *, every: int = 0, keep: int = DEFAULT_KEEP, block: bool = True) -> None:
        """Continues from the newest checkpoint in `path`, unless this training has begun already, and saves there every
        `every` steps, and when all members leave (0: never). Call it once, on all ranks, before the first batch.

        It is enough if one rank finds the checkpoint: the others receive the state. Under elasticrun, a snapshot in
        memory is used instead if it is newer; see docs/design/0023-memory-snapshots.md. With a sharded model (FSDP2),
        all ranks must share the directory; see docs/design/0024-sharded-state.md.

        The random numbers of each rank are part of it (Python, NumPy, torch), and go on if there are as many ranks as
        before. Where several processes continue in place, they are not; in snapshots of models that are not sharded,
        only before planned changes.

        block: False copies the state, and writes it while the training continues; see `save_checkpoint`.
        """
        if self._worlds.formed or self._worlds.others:
            raise SessionError("session.checkpoint() must be called before anything else of the session")
        self._state.load(Storage(path=path, every=every, keep=keep, block=block))
        if self._engine is not None and every:
            self._engine.saves_at_end()

    # -- inside

    def _begin_pass(self, epoch: int | None) -> None:
        if self._has_loop:
            self._passes.check_epoch(epoch)
        self._passes.begin()

    def _commit(self, offered: Share) -> None:
        before = self._state.cursor.epoch
        self._state.commit(offered)
        self._state.ends_epoch = self._has_loop and self._state.cursor.epoch != before
        if not self._worlds.reported:
            self._worlds.reported = True
            channel.send_phase("first-step", step=self._reported_step())
        progress.report_committed(self._reported_step())
        self._state.keep()
        self._state.ends_epoch = False

    def _enter(self, told: bool) -> None:
        self._entered()
        for callback in self._callbacks if told else ():
            callback(self)

    def _reported_step(self) -> int:
        """How many steps the training has taken, as its agent shows it."""
        return self._state.committed

    def _entered(self) -> None:
        """This process is in a world, also its first one, and has its state; see `AdapterSession`."""

    def _save_last(self) -> None:
        """In one process, or on all ranks of one replica, before all of them end."""
        self._state.save_last()


def _new_state(parts: Parts) -> TrainingState:
    if in_replica():
        from elasticjob_runtime.training.session.replica_state import ReplicaState  # imports as much

        return ReplicaState(parts)
    if not parts.are_sharded:
        return TrainingState(parts)
    from elasticjob_runtime.training.session.sharded import new_state  # imports much, which takes 0.15 s

    return new_state(parts)
