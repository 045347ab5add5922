"""`init_process_group` a second time in one process, after `destroy_process_group`: each time in a part of the agent's
store of its own.

With a store that the agent keeps, torch (2.6 to 2.15, torchrun too) finds there what the group before left: gloo then
connects to ports that are closed, and waits for its timeout. Where rank 0 opens the store, each group has a new one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any


def watch(environment: Mapping[str, str]) -> None:
    """`environment`: the worker's. All ranks count alike, since each group is made by all of them."""
    distributed, c10d, rendezvous = (
        sys.modules.get(f"torch.distributed{name}") for name in ("", ".distributed_c10d", ".rendezvous")
    )
    function: Callable[..., Any] | None = getattr(distributed, "init_process_group", None)
    create: Callable[..., Any] | None = getattr(rendezvous, "_create_c10d_store", None)
    if function is None or create is None or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    groups = 0

    def create_store(host: str, port: int, *given: Any, **named: Any) -> Any:
        store = create(host, port, *given, **named)
        ours = str(port) == environment["MASTER_PORT"]
        return distributed.__dict__["PrefixStore"](f"group_{groups}", store) if groups and ours else store

    @functools.wraps(function)
    def init_process_group(*given: Any, **named: Any) -> Any:
        nonlocal groups
        rendezvous.__dict__["_create_c10d_store"] = create_store
        try:
            result = function(*given, **named)
        finally:
            rendezvous.__dict__["_create_c10d_store"] = create
        groups += 1
        return result

    for home in (distributed, c10d):
        if home is not None:
            home.__dict__["init_process_group"] = init_process_group
