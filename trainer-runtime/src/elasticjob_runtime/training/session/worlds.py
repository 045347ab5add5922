"""The worlds of a session, which this process enters one after the other."""

from __future__ import annotations

from collections.abc import Callable

from elasticjob_runtime.training.session.engine import Engine
from elasticjob_runtime.training.session.exchange import Exchange
from elasticjob_runtime.training.session.parts import Parts
from elasticjob_runtime.training.session.replicas import Replicas
from elasticjob_runtime.training.session.state import TrainingState
from elasticjob_runtime.training.session.steps import Steps
from elasticjob_runtime.training.session.undo import Aside
from elasticjob_runtime.training.sharded import ranks


class Worlds:
    def __init__(
        self,
        parts: Parts,
        state: TrainingState,
        steps: Steps,
        exchange: Exchange,
        *,
        engine: Engine | None,
        replicas: Replicas | None,
        data_parallel: tuple[int, int] | None,
        save_last: Callable[[], None],
        entered: Callable[[bool], None],
    ) -> None:
        """engine: None if the process stays in the world that it was started in. data_parallel: the place of this rank
        among those of its replica that take different samples, and their number; None: all do. save_last: called in one
        process, or on all ranks of one replica, before all of them end. entered: called in each world with whether the
        script is to be told, because it was elsewhere before."""
        self._parts, self._state, self._steps, self._exchange = parts, state, steps, exchange
        self._engine, self._replicas, self._data_parallel = engine, replicas, data_parallel
        self._save_last, self._entered = save_last, entered
        self.formed = False
        """Whether this process is in one, or has been."""
        self.reported = False
        """Whether the first step of this world is reported."""
        self.place = (0, 1)
        """Of this rank among all that take different samples, and their number, once the world is formed: torch takes
        0.04 ms in each step to say so."""
        self.others: int | None = None
        """How many replicas train already, until this one has joined them; 0: none, or it has; None: not known yet."""
        self.aside: Aside | None = None
        """What the script changes that the others have changed already, until it comes to the place where they are."""
        self.aside_until = 0
        """The evaluation in which they are; see `State`."""

    @property
    def size(self) -> int:
        """How many ranks take different samples."""
        return self.place[1] if self.formed else self.find_place()[1]

    def find_place(self) -> tuple[int, int]:
        """See `place`."""
        rank, size = self._data_parallel or (ranks.rank(), ranks.size())
        place, count = self.replica
        return place * size + rank, count * size

    @property
    def replica(self) -> tuple[int, int]:
        """The number of this process's replica, and how many train together."""
        if self.others:
            return self.others, self.others + 1
        return (self._replicas.place, self._replicas.count) if self._replicas is not None else (0, 1)

    def tries(self) -> bool:
        """Whether this process takes a step on trial before it enters its first world."""
        if self.others is None and self._engine is not None and self._replicas is not None:
            self.others = self._engine.others()
        return bool(self.others)

    def set_aside(self, *, until: int = 0) -> None:
        """From now on, what the script changes outside of steps counts for nothing: see `aside`. until: see
        `aside_until`."""
        self.aside = Aside(self._parts, optimizers=self._state.changes_outside)
        self.aside_until = until
        self._state.values.set_aside()

    def end_aside(self) -> None:
        """This process is where the others are."""
        if self.aside is not None:
            self._state.values.end_aside()
            self.aside.restore()
            self.aside = None

    def share_again(self) -> None:
        """All processes of this world get the state of those that have gone on with the script. Raises OverError."""
        engine, state = self._engine, self._state
        assert engine is not None
        states = self._exchange.gather(state.process_state())
        self._steps.exchange(lambda: state.agree(states, engine.interruption, engine.world, engine.sender))

    def enter_newest(self, *, evaluation: int) -> None:
        """Enters the world of the newest plan, if this process is not in it. At the end, all its processes have the
        same state. evaluation: see `State`."""
        self._state.before_step()
        self._state.values.roll_back()
        if self.aside is not None:
            self.aside.restore()
        self._state.evaluation = evaluation
        engine, first = self._engine, not self.formed
        if engine is not None and (self._steps.broken or engine.due or first):
            engine.between_steps = False
            engine.enter(
                self._state.process_state,
                lambda world, states, group: self._state.agree(states, engine.interruption, world, group),
                give_up=lambda: self._state.give_up(engine.all_of_replica),
                save=self._save_last,
                broken=self._steps.broken,
            )
            engine.between_steps = True
            self._steps.broken = ""
            self.reported = False
        elif first:
            self._state.agree(ranks.gather(self._state.process_state()))
        else:
            return
        told = not first or bool(self.others) or self._state.joined
        self.formed, self.others = True, 0
        self.place = self.find_place()
        self._exchange.world += 1
        if self.aside is not None:
            self.set_aside(until=self.aside_until)
        self._entered(told)
