"""Moves this process from one world to the next: interrupt the step, form the group, agree on the state.

Two threads: the training's own, which forms worlds between steps, and one that waits for the agent's plans and ends the
world that is over, and with it whatever the training's thread waits for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elasticjob_runtime.training.link import NoAgentError
from elasticjob_runtime.training.session import torch_private
from elasticjob_runtime.training.session.agent import SessionAgent
from elasticjob_runtime.training.session.backend import Backend, Begin
from elasticjob_runtime.training.session.forming import Formed, form
from elasticjob_runtime.training.session.interruption import Interruption, OverError
from elasticjob_runtime.training.session.world import ProcessState, SessionError, World

logger = logging.getLogger("elasticjob_runtime.training")

PLAN_TIMEOUT = 60.0
"""s to wait for a plan after the communication failed, or at the start. Planning takes 0.2 s; longer than etcd may be
down for a short time."""
LOOK_INTERVAL = 0.05
"""s between two looks whether an evaluation, which has more time than a step, is over."""
MAX_ATTEMPTS = 10
"""Consecutive plans whose world could not be formed, before the process gives up and is restarted; without those that
were superseded meanwhile."""


class Engine:
    """`enter`, `world` and `interruption` are for the training's thread only."""

    def __init__(self, agent: SessionAgent, backend: Backend, *, plan_timeout: float = PLAN_TIMEOUT) -> None:
        self._agent = agent
        self._backend = backend
        self._plan_timeout = plan_timeout
        self._changed = threading.Condition()
        self._newest: World | None = None
        self._current: World | None = None
        """The world that is formed, or that this process is in."""
        self._formed = False
        """Whether it is formed. Before, a newer plan ends it without a grace period."""
        self._agent_error = ""
        self._old_groups: list[Any] = []
        self.interruption = Interruption()
        """Of the current world."""
        self.world: World | None = None
        """The world that this process is in."""
        self.sender: Any = None
        """What has `send` and `recv` between the processes of that world."""
        self.between_steps = False
        """Whether the script does what the session knows nothing about."""
        self.evaluates = False
        """Whether it is in an evaluation."""
        agent.hello()
        threading.Thread(target=self._watch, name="elasticjob-plans", daemon=True).start()

    @property
    def due(self) -> bool:
        """Whether there is a newer plan than the one of this world, and this process leaves for it."""
        return self._backend.is_due(self._newest, self.world)

    def saves_at_end(self) -> None:
        """The training has a place to save to."""
        with contextlib.suppress(NoAgentError):  # it is ending, and with it this process
            self._agent.saves_at_end()

    def communicate(self, begin: Begin) -> torch.futures.Future[Any]:
        """What `begin` returns; waiting for it ends with the world. For any thread of a step."""
        return self._backend.communicate(begin, self.interruption)

    def wait(self, work: Any) -> None:
        """Waits for the work of a collective on the CPU, or until the world ends. For any thread of a step."""
        self.interruption.wait(work)

    def begin_step(self) -> None:
        self.between_steps = False
        self._backend.begin_step()

    def others(self) -> int:
        """How many replicas train already, if this one is to join them later; 0: it is in the newest plan. Collective
        in a replica. Raises SessionError as `enter`."""
        return self._wait_for_common_plan(None, "").others

    def wait_for_collectives(self, *, used: bool = True) -> None:
        """Returns when those of the step are known to be done. Raises OverError if they may not be. used: see
        `Backend`."""
        newest = self._newest
        self._backend.wait_for_collectives(self.interruption, newest.order if newest is not None else 0, used=used)

    def meet(self) -> None:
        """Returns when all replicas have come here, between two steps. Raises OverError."""
        newest = self._newest
        self._backend.meet(self.interruption, newest.order if newest is not None else 0)

    def interrupts(self, error: BaseException) -> bool:
        """Whether `error` says that this world is over, and not that the script has failed."""
        return self._backend.interrupts(error)

    def all_of_replica(self, ok: bool) -> bool:
        """Whether all ranks of this replica say so. Collective."""
        return self._backend.all_of_replica(ok)

    @property
    def completes_early(self) -> bool:
        return self._backend.completes_early

    @property
    def votes(self) -> bool:
        return self._backend.votes

    def enter(
        self,
        process_state: Callable[[], ProcessState],
        agree: Callable[[World, Sequence[ProcessState], Any], None],
        *,
        give_up: Callable[[], None],
        save: Callable[[], None],
        broken: str,
    ) -> World:
        """Forms the world of the newest plan, and returns when all its processes agree on the state.

        process_state: how far this process is; agree: gives all processes of the formed group the same state, over what
        has `send` and `recv`; give_up: called if a rank of this replica could not enter; save: called before the last
        world ends, in one process or replica. broken: how the current world has failed; empty: it has not, but is
        due to end. A process that is not in the newest plan waits for the next one.

        Raises SessionError if none comes.
        """
        over = self.world  # another replica may have told that it is, before the agent tells what follows
        if broken and over is not None and not self.due:  # a lost process brings a plan anyway; a connection does not
            self._agent.report("failed", over, why=broken)
        attempts = 0
        while True:
            self.interruption.end()  # what other processes still wait for in the old world ends with it
            world = self._wait_for_common_plan(over, broken)
            if not world.environment:
                # It is not in this plan. It keeps its model, so that it can enter a later one without a start; if this
                # was the last world of all, it may be the one that saves.
                if not self._backend.all_of_replica(not world.saves):  # its ranks save together
                    save()
                self._agent.report("waiting", world)
                over = world
                continue
            failed = self._try(world, process_state, agree)
            if not self._backend.all_of_replica(not failed):
                give_up()
                failed = failed or "another rank of this replica could not enter the world"
            else:
                self._check_same_step(process_state().state.step)
                failed = self._meet_others()
            if failed:
                over, broken = world, failed
                if self._newest is not world:
                    continue  # superseded: no failure, however often
                logger.info("the world of plan %d could not be formed: %s", world.round, broken)
                attempts += 1
                if attempts >= MAX_ATTEMPTS:
                    # A network that does not connect them is not mended by a further plan. A failure uses a restart.
                    raise SessionError(
                        f"the processes of {attempts} plans in a row could not reach each other: {broken}"
                    )
                self._agent.report("failed", world, why=broken)
                continue
            self.world = world
            if self.due:
                over = world
                continue  # no step begins in a world that is over, or about to be
            torch_private.release(self._old_groups)
            os.environ.update(world.environment)
            self._agent.report("entered", world, committed=process_state().state.step)
            return world

    def _try(
        self,
        world: World,
        process_state: Callable[[], ProcessState],
        agree: Callable[[World, Sequence[ProcessState], Any], None],
    ) -> str:
        """Enters `world`, as far as this process can. Why not; empty: it has. Not the error itself, whose frames refer
        to the group."""
        try:
            formed = self._form(world, process_state())
            self.sender = formed.group.sender
            agree(world, formed.process_states, formed.group.sender)
        except Exception as error:
            if not torch_private.is_link_error(error):
                raise  # an error of the script, which would repeat in the next world
            return first_line(error) or repr(error)
        return ""

    def _check_same_step(self, step: int) -> None:
        """Each rank of a replica has received its part of the state from another rank; they must be of one step."""
        lowest, highest = self._backend.range_in_replica(step)
        if lowest != highest:
            raise SessionError(
                f"the ranks of this replica have the state after step {lowest} and after step {highest}: the training "
                "continues from its last checkpoint. Please report this as a defect of ElasticJob"
            )

    def _meet_others(self) -> str:
        """Why not; empty: all replicas have entered this world. Else one that goes on, and may end the training, would
        leave another one without a state."""
        try:
            self.meet()
        except OverError as error:
            return first_line(error)
        return ""

    def _form(self, world: World, process_state: ProcessState) -> Formed:
        interruption = Interruption()
        with self._changed:
            if self._newest is not world:
                raise OverError("a newer plan has arrived")
            self.interruption, self._current, self._formed = interruption, world, False
        self._agent.report("arrived", world)
        formed = interruption.run(lambda: form(world, process_state, interruption, self._backend), discard=_discard)
        interruption.silent = formed.group.is_silent
        interruption.at_end(formed.group.interrupt)
        old = formed.group.install(formed.store)
        if old is not None:
            self._old_groups.append(old)
        with self._changed:
            self._formed = True
            if self._newest is not world:
                raise OverError("a newer plan has arrived")
        self._agent.report("formed", world)
        return formed

    def _wait_for_common_plan(self, over: World | None, broken: str) -> World:
        """The same: the one that all ranks of this replica have heard of. Collective."""
        world = self._wait_for_plan(over, broken)
        while True:
            lowest, highest = self._backend.range_in_replica(world.order)
            if lowest == highest:
                return world
            world = self._wait_for_plan(over, broken, at_least=highest)

    def _wait_for_plan(self, over: World | None, broken: str, *, at_least: int = 0) -> World:
        """The newest plan, as soon as it is another one than `over`, and its order `at_least` this one."""
        # A process that is in no plan waits for one as long as its agent lives.
        timeout = None if over is not None and not over.environment else self._plan_timeout
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._agent_error or self._is_new(over, at_least), timeout)
            if self._agent_error:
                raise SessionError(f"no further plans: {self._agent_error}")
            if not arrived or self._newest is None:
                after = f" after the communication failed: {broken}" if broken else ""
                raise SessionError(f"no plan from the agent within {self._plan_timeout:g} s{after}")
            return self._newest

    def _is_new(self, over: World | None, at_least: int) -> bool:
        return self._newest is not None and self._newest != over and self._newest.order >= at_least

    # -- the watching thread

    def _watch(self) -> None:
        end_at: float | None = None
        """When the current world ends, if this process has not left it before."""
        longest = 0.0
        """The same while it evaluates."""
        while True:
            wait = 3600.0 if end_at is None else max(0.001, end_at - time.monotonic())
            try:
                world = self._agent.next_world(wait)
                if world is not None:
                    self._agent.report("heard", world)
            except (NoAgentError, KeyError, TypeError, ValueError) as error:
                with self._changed:
                    self._agent_error = str(error) or repr(error)
                    self._changed.notify_all()
                return
            if world is not None and world != self._newest:
                with self._changed:
                    self._newest = world
                    self._changed.notify_all()
                    forms = None if self._formed else self.interruption
                if forms is not None:
                    forms.end()
                end_at = time.monotonic() + world.step_grace
                longest = time.monotonic() + world.evaluation_grace
            if end_at is not None and time.monotonic() >= end_at:
                if self.evaluates and time.monotonic() < longest:
                    end_at = min(longest, time.monotonic() + LOOK_INTERVAL)
                    continue
                end_at = None
                with self._changed:
                    old = None if self._current is self._newest else self.interruption
                if old is not None:
                    if self.between_steps and not old.over:
                        logger.warning(
                            "the world changes between two steps. If the script communicates there, it fails now: "
                            "let session.evaluate() call it"
                        )
                    old.end()


def _discard(formed: Formed) -> None:
    formed.group.forget()  # nothing else refers to it


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
