"""How the processes of a plan find each other and form a process group."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from elasticjob_runtime.training import round_store
from elasticjob_runtime.training.session.backend import FORM_TIMEOUT, Backend, Group
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
    store = round_store.connect(host, port, FORM_TIMEOUT)
    here = PrefixStore(world.prefix, store)
    here.set(f"standing/{world.rank}", process_state.to_json())
    ranks = range(world.size)
    _wait(here, [f"standing/{rank}" for rank in ranks], None, interruption)
    process_states = [ProcessState.from_json(text) for text in here.multi_get([f"standing/{rank}" for rank in ranks])]
    group = backend.connect(PrefixStore("group", here), world)
    try:
        here.set(f"formed/{world.rank}", json.dumps(group.addresses))
        # No process begins to communicate, or closes a connection, while another one still connects to it.
        formed = [f"formed/{rank}" for rank in ranks]
        _wait(here, formed, FORM_TIMEOUT, interruption)
        addresses = [(host, port) for text in here.multi_get(formed) for host, port in json.loads(text)]
        group.keep(addresses, world.size)
    except BaseException:
        group.forget()
        del group  # which closes its connections, and not those of the next attempt, which may have begun
        raise
    return Formed(process_states=process_states, group=group, store=here)


def _wait(store: PrefixStore, keys: Sequence[str], timeout: float | None, interruption: Interruption) -> None:
    """Returns when the store has all `keys`. Raises OverError after `timeout` seconds."""
    # Not store.wait: nothing ends it before its timeout, which prints two lines of warnings.
    began = time.monotonic()
    while not store.check(list(keys)):
        if interruption.over:
            raise OverError("a newer plan has arrived")
        waited = time.monotonic() - began
        if timeout is not None and waited > timeout:
            raise OverError(f"not all processes have connected to each other within {timeout:g} s")
        time.sleep(min(max(FIRST_LOOK, waited / 8), LAST_LOOK))
