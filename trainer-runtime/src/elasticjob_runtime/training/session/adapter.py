"""What an adapter for a framework needs of a session, and what a session needs of an adapter.

Frameworks own the loop over batches, with counters, hooks and evaluations in it. An adapter replaces what of the loop
may be interrupted and repeated, and gives it to `AdapterSession.take`. The session calls the methods of `Adapter`.
Adapters use nothing else of this package; import-linter checks that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from elasticjob_runtime.contract import Env, Fence
from elasticjob_runtime.training.checkpoint import this_job
from elasticjob_runtime.training.checkpoint.order import NO_FENCE, State
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.engine import first_line
from elasticjob_runtime.training.session.feed import Cursor, Share
from elasticjob_runtime.training.session.interruption import OverError
from elasticjob_runtime.training.session.session import ElasticSession
from elasticjob_runtime.training.session.world import SessionError

__all__ = ["Adapter", "AdapterSession", "SessionError", "Share"]

T = TypeVar("T")


class Adapter(Protocol):
    """A framework, as a session sees it."""

    def steps(self) -> int:
        """How many steps the framework counts, which is what the agent shows. The session also counts steps without a
        batch."""

    def entered(self) -> None:
        """This process is in a world, also in its first one, and has its state. What the framework has copied of rank
        and world size is out of date."""

    def remember(self, *, batch: bool) -> Callable[[], None]:
        """Called before each step; `batch`: whether it is one with a batch. Returns what puts back all that the step
        changes and that is not a part of the session, if the step is interrupted."""


class AdapterSession(ElasticSession):
    _has_loop = False

    def __init__(self, adapter: Adapter, **parts: Any) -> None:
        """parts: as of `ElasticSession`. How far the framework is should be one of them, so that processes that join
        receive it."""
        super().__init__(**parts)
        if self._replicas is not None:
            raise TypeError("ElasticSession: frameworks do not train in replicas; write the loop with a session")
        self._adapter = adapter
        self._at_end: Callable[[], None] | None = None

    @property
    def continues_in_place(self) -> bool:
        return self._engine is not None

    # -- where the training begins

    def begin_at(self, *, epoch: int, consumed: int) -> None:
        """Enters the first world. A training that begins there has taken `consumed` samples of `epoch`."""
        self._state.cursor = Cursor(epoch=epoch, consumed=consumed)
        self._passes.enter_first_world()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint of the framework: how far the training is in its data, after the step in progress."""
        state, offered = self._state, self._passes.offered
        committed, cursor = max(state.committed, 0), state.cursor
        if offered is not None and offered.positions:
            committed, cursor = committed + 1, offered.next
        return {
            "committed": committed,
            "epoch": cursor.epoch,
            "consumed": cursor.consumed,
            "job": this_job(),
            "fence": os.environ.get(Env.FENCE, ""),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint of the framework, which has loaded the rest. To be called before the first world."""
        cursor = Cursor(epoch=int(state["epoch"]), consumed=int(state["consumed"]))
        fence = Fence.parse(str(state["fence"])) if state["fence"] else NO_FENCE
        self._state.continue_from(State(step=int(state["committed"]), job=str(state["job"]), fence=fence), cursor)

    # -- steps

    def enter_newest_world(self) -> None:
        """Enters the newest world, if this process is not in it. What follows must depend on the session's state only:
        other processes may be at another place in the script."""
        self._passes.enter_newest_world()

    @property
    def share(self) -> Share:
        """This process's part of the batch in use."""
        assert self._passes.offered is not None, "only between batches() and the end of step()"
        return self._passes.offered

    def withdraw_batch(self) -> None:
        """Puts the batch in use back: `batches` deals it again, if it is still due."""
        self._passes.end_step()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        offered = self._passes.offered
        batch = offered is None or bool(offered.positions)
        put_back, committed = self._adapter.remember(batch=batch), self._state.committed
        with super().step():
            yield
        if self._state.committed <= committed:
            put_back()

    def take(self, body: Callable[[], object]) -> bool:
        """Calls `body` as the step of the batch in use. False: it was interrupted, and what it changed is put back."""
        committed = self._state.committed
        with self.step():
            body()
        return self._state.committed > committed

    def take_without_batch(self, body: Callable[[], object]) -> bool:
        """The same for what all processes do between two batches: a validation, say. Processes that it interrupts
        receive the state from those that have finished it, so it must change the state."""
        self._passes.use(Share(positions=(), samples=0, batch=1, next=self._state.cursor))
        return self.take(body)

    def weigh_processes(self) -> None:
        """The losses of this step are weighted already: DDP takes the mean over processes. One without samples of its
        own adds nothing."""
        share = self.share
        counted = dataclasses.replace(share, samples=min(1, share.samples), batch=self._worlds.size)
        self._weight.begin(counted, self._worlds.size)

    # -- communication

    def add_up(self, tensor: torch.Tensor) -> None:
        """Makes `tensor` the sum over all processes. Only within a step."""
        if self._engine is None:
            if self._worlds.size > 1:
                dist.all_reduce(tensor)
            return
        if tensor.is_cpu:
            self._engine.wait(dist.all_reduce(tensor, async_op=True))
        else:
            self._engine.communicate(functools.partial(_begin_all_reduce, tensor)).wait()
        self._engine.wait_for_collectives()

    def communicate(self, function: Callable[[], T], otherwise: Callable[[], T] | None = None) -> T:
        """What `function` returns, which communicates. It ends with the world, whatever gloo waits for, and raises what
        interrupts the step. Where nothing can be repeated, such as after the optimizer's step, it returns
        `otherwise()`."""
        if self._engine is None:
            return function()
        interruption = self._engine.interruption

        def here() -> T:
            if interruption.over:
                raise OverError("the world ended before its thread began")  # or it would communicate in the next one
            return function()

        try:
            return interruption.run(here)
        except Exception as error:
            if otherwise is None or self._steps.can_undo or not torch_private.is_link_error(error):
                raise
            self._steps.broken = self._steps.broken or first_line(error)
            return otherwise()

    # -- planned changes

    def leave_planned_changes(self) -> None:
        """To the adapter, which saves before them."""
        self._state.saves_before_changes = False

    def save_at_end(self, save: Callable[[], None]) -> None:
        """When all members leave, calls `save` in one process, between two steps. It must not communicate."""
        self._at_end = save
        if self._engine is not None:
            self._engine.saves_at_end()

    def take_snapshot(self) -> None:
        """In memory, of the state between two steps, even if none is due."""
        self._state.take_snapshot()

    # -- inside

    def _reported_step(self) -> int:
        return self._adapter.steps()

    def _entered(self) -> None:
        self._adapter.entered()

    def _save_last(self) -> None:
        super()._save_last()
        if self._at_end is not None:
            self._at_end()


def _begin_all_reduce(tensor: torch.Tensor) -> torch.futures.Future[Any]:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work.get_future()
