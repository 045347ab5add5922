"""Changes to library functions in a worker, each for a problem that an unchanged script would otherwise have.

Standard library only, and nothing else of this package: workers that were executed load this file by its path
(workers/exec_hooks/sitecustomize.py).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_RESOURCE_TRACKER = "from multiprocessing.resource_tracker import main"
_C10D = ".distributed.distributed_c10d"


def apply(environment: Mapping[str, str]) -> None:
    """Call this in a forked worker before the script runs. `environment`: the worker's."""
    detach_resource_tracker()
    apply_to_torch(environment)


def apply_to_torch(environment: Mapping[str, str]) -> None:
    """Call this in every worker, forked or spawned, when `torch.distributed` is imported: forked ranks and spawned ones
    may be in one group."""
    disable_libuv(environment)
    isolate_process_groups(environment)
    keep_group_threads(environment)


def disable_libuv(environment: Mapping[str, str]) -> None:
    """Honours USE_LIBUV=0. torch 2.6 ignores it for a store that the agent hosts (rendezvous._create_c10d_store), and
    fails where torch has no libuv."""
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    if environment.get("USE_LIBUV") == "0" and rendezvous is not None:
        store = rendezvous.TCPStore
        rendezvous.__dict__["TCPStore"] = lambda *given, **named: store(*given, **{"use_libuv": False, **named})


def detach_resource_tracker() -> None:
    """Lets Python's resource tracker outlive a killed worker long enough to clean up.

    The tracker (multiprocessing) removes the semaphores and shared memory of DataLoaders that use the spawn or
    forkserver method once all their users have ended. SIGKILL to the worker's process group would kill it too, so it
    gets its own session. It ends by itself: it reads a pipe that closes with the last process of the worker.
    """
    from multiprocessing import util  # not in a worker that was executed: its script may not use it

    spawn = util.spawnv_passfds

    def spawnv_passfds(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        return spawn(path, in_new_session(args), passfds)

    util.__dict__["spawnv_passfds"] = spawnv_passfds


def in_new_session(arguments: Sequence[str]) -> list[str]:
    """
    >>> in_new_session(["python", "-c", "from multiprocessing.resource_tracker import main;main(3)"])[-1]
    'import os;os.setsid();from multiprocessing.resource_tracker import main;main(3)'
    """
    return [
        f"import os;os.setsid();{argument}"
        if isinstance(argument, str) and argument.startswith(_RESOURCE_TRACKER)
        else argument
        for argument in arguments
    ]


def isolate_process_groups(environment: Mapping[str, str]) -> None:
    """Makes process-group re-initialization work: `init_process_group` after `destroy_process_group`.

    If the agent hosts the store, torch (2.6 to 2.15, with torchrun too) finds the previous group's keys there: gloo
    then connects to closed ports and waits for its timeout. Each group after the first gets its own prefix in the
    store. All ranks count alike, because every group is created by all of them. If rank 0 hosts the store, each group
    has a new one anyway.
    """
    distributed, c10d, rendezvous = (
        sys.modules.get(f"torch{name}") for name in (".distributed", _C10D, ".distributed.rendezvous")
    )
    function: Callable[..., Any] | None = getattr(distributed, "init_process_group", None)
    create: Callable[..., Any] | None = getattr(rendezvous, "_create_c10d_store", None)
    if function is None or create is None or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    groups = 0

    def create_store(host: str, port: int, *given: Any, **named: Any) -> Any:
        store = create(host, port, *given, **named)
        hosted_by_agent = str(port) == environment["MASTER_PORT"]
        if not groups or not hosted_by_agent:
            return store
        return distributed.__dict__["PrefixStore"](f"group_{groups}", store)

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

    for module in (distributed, c10d):
        if module is not None:
            module.__dict__["init_process_group"] = init_process_group


FREES_GROUPS_UNLOCKED = (2, 8)
"""The first torch that lets other threads run Python while it destroys a process group (pytorch/pytorch#154976)."""


def keep_group_threads(environment: Mapping[str, str]) -> None:
    """Keeps the threads of a gloo group from its end to the end of the next group, or of the process.

    Older torch (2.6, 2.7) waits for them with the interpreter locked. A thread that has the last reference to a tensor
    of the collective before needs the interpreter to release it, and the process hangs: seen in a script that ends with
    `destroy_process_group()`. While Python refers to the group's backend, nothing waits for its threads.

    A session's groups are not kept: it calls torch's own function, and gives them up itself.
    Not if rank 0 hosts the store: the backend keeps that, too, and the next group's could not have its port.
    """
    torch, distributed, c10d = (sys.modules.get(f"torch{name}") for name in ("", ".distributed", _C10D))
    function: Callable[..., None] | None = getattr(distributed, "destroy_process_group", None)
    version = tuple(int(part) for part in getattr(torch, "__version__", "").split(".")[:2] if part.isdecimal())
    if function is None or c10d is None or version >= FREES_GROUPS_UNLOCKED:
        return
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    kept: list[Any] = []

    @functools.wraps(function)
    def destroy_process_group(group: Any = None) -> None:
        backends: list[Any] = []
        with contextlib.suppress(AttributeError, RuntimeError):  # internal to torch
            every = group is None or group is distributed.__dict__["group"].WORLD
            for process_group in c10d.__dict__["_world"].pg_map if every else [group]:
                backends += [process_group._get_backend(device) for device in process_group._device_types]
        function(group)
        kept[:] = [backend for backend in backends if backend.name() == "gloo"]

    for module in (distributed, c10d):
        module.__dict__["destroy_process_group"] = destroy_process_group
