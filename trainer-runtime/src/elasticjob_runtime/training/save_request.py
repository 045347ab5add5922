"""`checkpoint_wanted`: asks all ranks to save at the same step, before a planned change of the worker group.

The agents ask their workers at slightly different times, while the ranks are at different places of the training. A
thread in each worker waits for the request, and agrees with the others on one call, in the store of this round:

1. It publishes how many calls its rank has begun. From then on, the next call of this rank waits for the result.
2. Rank 0's thread reads these numbers and publishes one more than the highest.
3. Each rank returns True from the call of that number, and False from those before it.

This needs no lockstep, which a collective on a GPU would not give: a rank that waits in a call has done its part of all
steps before it, so every other rank gets as far. The threads depend on no step.

A rank has nothing left to save when it makes the next call: no earlier moment is certain, because a script may save
several files. That call does not return, since everything after the save is lost: the agent kills the process. So one
step is done in vain, unless the script exits after it has saved.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from elasticjob_runtime.contract import Env
from elasticjob_runtime.training import background, progress, round_store
from elasticjob_runtime.training.channel import number
from elasticjob_runtime.training.link import AgentLink, NoAgentError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

logger = logging.getLogger("elasticjob_runtime.training")

GIVE_UP = 0.8
"""Share of the time to save after which the ranks no longer wait for each other."""

NOT_KILLED = 5.0
"""s after the announced time, after which a worker that is still alive continues."""


def checkpoint_wanted() -> bool:
    """True if the worker group is about to change, and this is the step to save: the new group continues from here.

        optimizer.step()
        if checkpoint_wanted():
            save_checkpoint(directory, state, step=step)    # on rank 0, or as your script saves

    Call it after each step, on all ranks. It returns True on all of them after the same step, once per worker group,
    when members join or leave or the job is resized; not after a failure. A call takes about 5 us.

    What the script does after it has saved is lost, and the next call does not return: the process is killed, and
    started again with the new group. If a step takes long, `sys.exit()` after the save saves that time.

    The script has `--shutdown-timeout` seconds (`lifecycle.gracefulShutdownSeconds`) from the announcement until its
    checkpoint is written. A process that handles SIGTERM gets that signal instead, and here always False: use one or
    the other, on all ranks.

    Without an agent (plain python, torchrun), this is always False.
    """
    return _request().is_now()


def session_ends() -> bool:
    """`checkpoint_wanted` for a session, after each of its steps, on all ranks.

    From then on, calls of the script do not count. After the step at which this is True, they are True, too, so that
    the script can save what is its own.
    """
    return _request().is_now(session=True)


def seconds_to_save() -> float:
    """Until the agent kills this process; for the step at which `checkpoint_wanted` returned True."""
    return _process.request.seconds_to_save if _process.request is not None else 0.0


def member_stays() -> bool:
    """Whether what this process leaves in its agent's memory survives the change; for the same step."""
    return _process.request is not None and _process.request.member_stays


class SaveRequest:
    """What this process knows about a request to save. `is_now` is called by the script's thread, `follow` by the
    thread that waits for the agent."""

    def __init__(self, link: AgentLink | None, agree: Callable[[int, float], int | None]) -> None:
        """`link`: None: there is no agent. `agree`: see `agree`, with the number of calls and the seconds."""
        self._link = link
        self._agree = agree
        self._lock = threading.Lock()
        self._calls = 0
        self._counts_steps = False
        """A session calls."""
        self._kill_at: float | None = None
        """When the agent kills this process; None: nothing is requested."""
        self.member_stays = False
        self._asked_at = 0.0
        """When a call returned True."""
        self._agreed = threading.Event()
        self._save_at: int | None = None
        """The call that returns True; None: not agreed."""

    def is_now(self, *, session: bool = False) -> bool:
        """session: see `session_ends`."""
        if session:
            self._counts_steps = True
        elif self._counts_steps:
            return self._agreed.is_set() and self._calls == self._save_at
        with self._lock:
            self._calls += 1
            if self._kill_at is None:
                return False
        if not self._agreed.wait(self._remaining) or self._save_at is None:
            return False
        if self._calls == self._save_at:
            self._asked_at = time.monotonic()
            progress.final_checkpoint_follows()
            return True
        if self._calls == self._save_at + 1:
            self._end()
        return False

    def follow(self) -> None:
        """Waits until the agent asks, and agrees with the other ranks on a call."""
        assert self._link is not None
        try:
            order = self._link.wait_for_save_request()
            self.member_stays = order.stays
            with self._lock:
                self._kill_at = time.monotonic() + order.seconds
                begun = self._calls
            self._save_at = self._agree(begun, order.seconds)
        except NoAgentError:
            pass
        except (RuntimeError, ImportError, ValueError) as error:  # torch's errors of a store are RuntimeErrors
            logger.warning("the ranks cannot save together before this change: %s", error)
        self._agreed.set()

    def _end(self) -> None:
        """All is saved. Returns only if the agent does not kill this process."""
        assert self._link is not None
        background.wait_for_saves(self._asked_at, self.seconds_to_save)
        try:
            self._link.report_saved()
        except NoAgentError:
            return
        time.sleep(self._remaining)

    @property
    def seconds_to_save(self) -> float:
        return max(0.0, (self._kill_at or 0.0) - time.monotonic())

    @property
    def _remaining(self) -> float:
        return max(0.0, (self._kill_at or 0.0) + NOT_KILLED - time.monotonic())


@dataclasses.dataclass
class _Process:
    request: SaveRequest | None = None
    """None: `checkpoint_wanted` has not been called yet."""


_process = _Process()


def _request() -> SaveRequest:
    if _process.request is None:
        _process.request = _connect()
    return _process.request


def agree(store: Store, rank: int, world: int, begun: int, seconds: float) -> int | None:
    """Returns the number of the call in which all ranks save, one more than the highest `begun` of any rank. None: not
    all ranks have called `checkpoint_wanted` within `seconds`."""
    prefix = f"elasticjob/save/{number(Env.ROUND)}"
    store.set(f"{prefix}/begun/{rank}", str(begun))
    if rank == 0:
        keys = [f"{prefix}/begun/{each}" for each in range(world)]
        try:
            store.wait(keys, datetime.timedelta(seconds=seconds))
            at = 1 + max(int(value) for value in store.multi_get(keys))
        except RuntimeError:
            missing = [str(each) for each, key in enumerate(keys) if not store.check([key])]
            logger.warning(
                "Rank %s did not call checkpoint_wanted() within %.0f s: the ranks cannot save together, and this "
                "change repeats the steps since the last checkpoint.",
                ", ".join(missing[:5]),
                seconds,
            )
            at = 0
        store.set(f"{prefix}/at", str(at))
    return int(store.get(f"{prefix}/at")) or None


def _agree_in_round(begun: int, seconds: float) -> int | None:
    """Agrees in the store on which the process group of this round was formed."""
    rank, world = number("RANK"), number("WORLD_SIZE")
    if world <= 1:
        return begun + 1
    store = round_store.connect(os.environ.get("MASTER_ADDR", ""), number("MASTER_PORT"), seconds)
    return agree(store, rank, world, begun, GIVE_UP * seconds)


def _connect() -> SaveRequest:
    try:
        link = AgentLink()
        link.offer_to_save()
    except NoAgentError:
        return SaveRequest(None, _agree_in_round)
    request = SaveRequest(link, _agree_in_round)
    threading.Thread(target=request.follow, name="save-request", daemon=True).start()
    return request
