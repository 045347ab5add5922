"""How the processes of a plan find each other and form a process group."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Sequence

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from elasticjob_runtime.training import round_store
from elasticjob_runtime.training.session.backend import STORE_TIMEOUT, Backend, Group, form_timeout
from elasticjob_runtime.training.session.interruption import Interruption, OverError
from elasticjob_runtime.training.session.world import ProcessState, World

FIRST_LOOK, LAST_LOOK = 0.0003, 0.01
"""s between two looks into the store while processes of a plan are missing: an eighth of the time so far, so that a
process waits an eighth longer than it must, and one that waits for long costs the store's host little."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Formed:
    process_states: list[ProcessState]
    """Of all ranks, before they formed this world."""
    group: Group
    store: PrefixStore


def form(world: World, process_state: ProcessState, interruption: Interruption, backend: Backend) -> Formed:
    """Meets the other processes of `world` in its store, and connects to them. Blocks; meant for `Interruption.run`,
    since neither the store's host nor another process may ever answer.

    All processes meet in the store before any of them connects to another one: who is missing there shows nowhere else
    before the timeout.
    """
    host, port = world.store
    store = round_store.connect(host, port, STORE_TIMEOUT)
    here = PrefixStore(world.prefix, store)
    texts = _gather(here, "standing", process_state.to_json(), world, None, interruption)
    process_states = [ProcessState.from_json(text) for text in texts]
    group = backend.connect(PrefixStore("group", here), world)
    try:
        # No process begins to communicate, or closes a connection, while another one still connects to it.
        formed = _gather(here, "formed", json.dumps(group.addresses), world, form_timeout(world.size), interruption)
        addresses = [(host, port) for text in formed for host, port in json.loads(text)]
        group.keep(addresses, world.size)
    except BaseException:
        group.forget()
        del group  # which closes its connections, and not those of the next attempt, which may have begun
        raise
    return Formed(process_states=process_states, group=group, store=here)


def _gather(
    store: PrefixStore, name: str, value: str, world: World, timeout: float | None, interruption: Interruption
) -> list[str]:
    """The values of all ranks, in order. Raises OverError if some are missing after `timeout` seconds.

    Rank 0 alone reads them all, once, and leaves one document for the others. Waiting costs the store's host one key a
    look, and so as much in a large world as in a small one.
    """
    store.set(f"{name}/{world.rank}", value)
    store.add(f"{name}/count", 1)
    if world.rank == 0:
        keys = [f"{name}/{rank}" for rank in range(world.size)]
        # Not the counter alone: a process that is started again for this plan would be counted twice.
        _wait(lambda: store.add(f"{name}/count", 0) >= world.size and store.check(keys), timeout, interruption)
        values = [found.decode() for found in store.multi_get(keys)]
        store.set(f"{name}/all", _packed(values))
        return values
    _wait(lambda: store.check([f"{name}/all"]), timeout, interruption)
    return _unpacked(store.get(f"{name}/all"))


def _packed(values: Sequence[str]) -> str:
    """Of neighbours that are equal, one: the processes of a training are as far as each other, but for a few."""
    return json.dumps([(len(list(same)), value) for value, same in itertools.groupby(values)])


def _unpacked(document: bytes) -> list[str]:
    return [value for count, value in json.loads(document) for _ in range(count)]


def _wait(reached: Callable[[], bool], timeout: float | None, interruption: Interruption) -> None:
    """Raises OverError after `timeout` seconds."""
    # Not store.wait: nothing ends it before its timeout, which prints two lines of warnings.
    began = time.monotonic()
    while not reached():
        if interruption.over:
            raise OverError("a newer plan has arrived")
        waited = time.monotonic() - began
        if timeout is not None and waited > timeout:
            raise OverError(f"not all processes have connected to each other within {timeout:g} s")
        time.sleep(min(max(FIRST_LOOK, waited / 8), LAST_LOOK))
