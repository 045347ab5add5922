"""`ElasticSession`: what a training script uses to continue in place."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import channel, progress
from elasticjob_runtime.training.channel import number
from elasticjob_runtime.training.checkpoint import DEFAULT_KEEP
from elasticjob_runtime.training.checkpoint.save_load import PathLike, load_durable, save_durable
from elasticjob_runtime.training.session import port, torch_private
from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.feed import Cursor, Feed, Share
from elasticjob_runtime.training.session.gradients import ShareWeight, interruptible
from elasticjob_runtime.training.session.snapshots import Snapshots
from elasticjob_runtime.training.session.state import Parts, Undo, share
from elasticjob_runtime.training.session.world import NO_STATE, TORN, SessionError, Standing, World, agree

logger = logging.getLogger("elasticjob_runtime.training")


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

    Everything that a step changes belongs to the session: it takes anything with `state_dict` and `load_state_dict`.
    All communication belongs inside of `session.step()`, before `optimizer.step()`.

    A step that is interrupted because a process is lost ends silently at the end of its `with` block, and the loop
    then yields the same global batch again, dealt to the new world. The state of a lost process is not needed: all that
    remain have it. A joiner receives it from them.

    Without an agent that supports this (plain python, torchrun, restarts by elasticrun), the same script trains in the
    world that it was started in.

    Not thread-safe.
    """

    def __init__(self, *, model: Any, optimizer: Any = None, scheduler: Any = None, **others: Any) -> None:
        """Raises TypeError if one of these has no state, or a model's DDP does not use the default process group."""
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **others}
        self._parts = Parts({name: part for name, part in given.items() if part is not None})
        for ddp in self._parts.ddp:
            if not torch_private.uses_default_group(ddp):
                raise TypeError("ElasticSession: a model in DistributedDataParallel must use the default process group")
        self._weight = ShareWeight(self._parts.ddp)
        self._layout = self._parts.layout()
        self._cursor = Cursor()
        self._committed = NO_STATE
        self._fence = ""
        self._live = False
        self._formed = False
        self._broken = False
        self._offered: Share | None = None
        self._stepped: set[int] = set()
        self._reported = False
        """The first step of this world is reported."""
        self._callbacks: list[Callable[[ElasticSession], None]] = []
        self._save: tuple[PathLike, int, int] | None = None
        for index, each in enumerate(self._parts.optimizers):
            each.register_step_post_hook(lambda *_, index=index: self._stepped.add(index))
        self._snapshots = Snapshots(self._layout)
        self._engine = engine = self._new_engine()
        if engine is not None:
            interruptible(self._parts.ddp, lambda: engine.interruption.guard)

    # -- the world

    @property
    def rank(self) -> int:
        """May change with every batch."""
        self._settle()
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        self._settle()
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0, which logs and saves."""
        return self.rank == 0

    @property
    def round(self) -> int:
        """The number of the agent's plan; 0 without an agent."""
        self._settle()
        return number(Env.ROUND)

    def on_change(self, callback: Callable[[ElasticSession], None]) -> None:
        """Calls `callback(session)` in every process after each change, for example to scale the learning rate."""
        self._callbacks.append(callback)

    # -- progress

    @property
    def committed_steps(self) -> int:
        """Steps that are part of the training, in whatever worlds."""
        self._settle()
        return self._committed

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        self._settle()
        return self._cursor.epoch

    @property
    def weight(self) -> float:
        """By what to multiply the mean loss of this rank's share if the model has a communication hook of its own.
        Without one, the session weights the gradients: shares may differ by a sample."""
        assert self._offered is not None, "only between batches() and the end of step()"
        return self._offered.weight(self._size)

    def batches(
        self,
        dataset: Any,
        *,
        batch_size: int,
        epoch: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[Any]:
        """Yields this rank's share of each global batch in the rest of the epoch (default: the current one).

        batch_size: of the global batch, whatever the number of ranks. Every sample of the epoch is in exactly one
        committed step, also those of a short last batch, unless `drop_last`. Nothing is yielded for an epoch that is
        over, as for a process that joins in a later one.

        Raises TypeError for a data set without a length, ValueError for a batch size smaller than the world, and
        SessionError if a batch was not used in a `session.step()`.
        """
        self._settle()
        if not hasattr(dataset, "__len__"):
            raise TypeError("session.batches() needs a data set with a length: it must know where an epoch ends")
        smallest = self._size
        if batch_size < smallest:
            raise ValueError(f"batch_size is of all ranks together: {batch_size} is less than the {smallest} ranks")
        if drop_last and len(dataset) < batch_size:
            raise ValueError(f"with drop_last, a data set of {len(dataset)} has no batch of {batch_size}")
        wanted = self._cursor.epoch if epoch is None else epoch
        if wanted > self._cursor.epoch:
            self._cursor = Cursor(epoch=wanted)
        return self._batches(
            Feed(
                dataset,
                epoch=wanted,
                batch_size=batch_size,
                drop_last=drop_last,
                shuffle=shuffle,
                seed=seed,
                num_workers=num_workers,
                collate_fn=collate_fn,
            ),
            wanted,
        )

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step, from the first use of the batch to the last change of the state. It is committed at the end.

        An exception of the script's own ends the training as without a session. Accumulate gradients within one step:
        it begins without gradients if it is repeated.
        """
        offered = self._offered
        if offered is None:
            raise SessionError("session.step() needs a batch from session.batches() for each step")
        undo = Undo(self._parts) if self._engine is not None else None
        self._stepped.clear()
        self._weight.begin(offered, self._size)
        try:
            yield
        except Exception as error:
            if undo is None or not torch_private.is_link_error(error):
                raise
            logger.info("step %d is interrupted: %s", self._committed + 1, str(error).partition("\n")[0][:200])
            self._broken = True
            if not self._stepped:
                undo.restore()
            elif len(self._stepped) == len(self._parts.optimizers) and self._parts.only_models_and_optimizers:
                self._commit(offered)  # what remained was for the user's eyes: a mean loss, say
            else:
                self._committed, self._live = TORN, False
            self._offered = None
            return
        self._commit(offered)

    def checkpoint(self, path: PathLike, *, every: int = 0, keep: int = DEFAULT_KEEP) -> None:
        """Continues from the newest checkpoint in `path`, unless this training has begun already, and saves there every
        `every` steps (0: never). Call it once, on all ranks, before the first batch.

        It is enough if one rank finds the checkpoint: the others receive the state. Under elasticrun, a snapshot in
        memory is used instead if it is newer; see docs/design/0023-memory-snapshots.md.
        """
        if self._formed:
            raise SessionError("session.checkpoint() must be called before anything else of the session")
        self._save = (path, every, keep)
        state = load_durable(path)
        if state is not None:
            self._apply(state)
            self._fence = str(state.get("fence", ""))

    # -- inside

    @property
    def _size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    def _batches(self, feed: Feed, epoch: int) -> Iterator[Any]:
        while True:
            self._settle()
            if self._cursor.epoch != epoch:
                return
            place = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
            found = feed.next(self._cursor, *place)
            if found is None:
                return
            batch, self._offered = found
            yield batch
            if self._offered is not None:
                self._offered = None
                raise SessionError("a batch of session.batches() was not used in a `with session.step():`")

    def _commit(self, offered: Share) -> None:
        self._committed += 1
        self._cursor = offered.next
        self._offered = None
        if not self._reported:
            self._reported = True
            channel.send_phase("first-step", step=self._committed)
        progress.report_committed(self._committed)
        if self._save is not None and self._save[1] and self._committed % self._save[1] == 0:
            path, _, keep = self._save
            if not dist.is_initialized() or dist.get_rank() == 0:
                save_durable(path, self._state(), self._committed, keep)
        self._snapshots.committed(self._committed, self._state)

    def _settle(self) -> None:
        """Enters the world of the newest plan, if this process is not in it. At the end, all its processes have the
        same state."""
        if self._offered is not None:
            return  # a batch is in use, and its step not yet committed
        if self._engine is not None and (self._broken or self._engine.due or not self._formed):
            first = not self._formed
            self._engine.enter(self._standing, self._settle_in, broken=self._broken)
            self._broken = False
            self._reported = False
            self._formed = True
            for callback in () if first else self._callbacks:
                callback(self)
        elif not self._formed:
            standings: list[Any] = [self._standing()]
            if self._size > 1:
                standings *= self._size
                dist.all_gather_object(standings, self._standing())
            self._agree(standings)
            self._formed = True

    def _standing(self) -> Standing:
        """Of this process's state, or of the one in memory if that is newer; then it is not loaded yet."""
        own = Standing(committed=self._committed, live=self._live, layout=self._layout, fence=self._fence)
        found = self._snapshots.found
        if found is None:
            return own
        kept = dataclasses.replace(own, committed=found.step, live=False, fence=str(found.header.fence))
        return max(own, kept, key=lambda standing: standing.precedence)

    def _settle_in(self, world: World, standings: Sequence[Standing]) -> None:
        self._agree(standings)
        self._fence = world.environment.get(Env.FENCE, "")

    def _agree(self, standings: Sequence[Standing]) -> None:
        """Collective: all processes have the same state afterwards."""
        agreement = agree(standings)
        if self._engine is not None:
            self._parts.forget_gradients()
            for ddp in self._parts.ddp:
                torch_private.rebuild(ddp)
        rank = dist.get_rank() if dist.is_initialized() else 0
        if rank in agreement.donors:
            self._give(standings[rank])
        given = self._state() if rank in agreement.donors else None
        if self._engine is None:
            state = share(agreement, rank, given)
        else:
            state = self._engine.interruption.run(lambda: share(agreement, rank, given))
        if state is not None:
            self._apply(state)
        self._live = True
        self._snapshots.entered()

    def _give(self, standing: Standing) -> None:
        """Makes this process's state the one that it stood for."""
        if (standing.committed, standing.live, standing.fence) != (self._committed, self._live, self._fence):
            self._apply(self._snapshots.load())
            self._fence = standing.fence
        elif self._committed == NO_STATE:
            self._committed = 0

    def _state(self) -> dict[str, Any]:
        return {
            "step": self._committed,
            "epoch": self._cursor.epoch,
            "consumed": self._cursor.consumed,
            "fence": os.environ.get(Env.FENCE, ""),
            "parts": self._parts.collect(),
        }

    def _apply(self, state: dict[str, Any]) -> None:
        self._parts.apply(state["parts"])
        self._committed = int(state["step"])
        self._cursor = Cursor(epoch=int(state["epoch"]), consumed=int(state["consumed"]))

    def _new_engine(self) -> Engine | None:
        agent = port.connect()
        if agent is None:
            return None
        problem = torch_private.missing()
        if not problem and not self._parts.ddp:
            problem = "no model of the session is in DistributedDataParallel"
        if not problem and dist.is_initialized() and "nccl" in str(dist.get_backend()):
            problem = "the process group uses NCCL, which is not supported yet"
        if problem:
            logger.warning("this process restarts at every change, and cannot continue in place: %s", problem)
            return None
        _warm_up()
        return Engine(agent)


def _warm_up() -> None:
    """torch initializes much at the first step of a process, for which all others of its world would wait."""
    parameter = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    state = torch.get_rng_state()
    (parameter @ torch.ones(8, 8)).square().mean().backward()
    optimizer.step()
    torch.set_rng_state(state)
