"""Lets Python's resource tracker outlive a worker that is killed, by as long as it takes to clean up.

The tracker (multiprocessing) removes the semaphores and shared memory of DataLoaders that are spawned or come from a
fork server, once all who use them have ended. It would be killed with the worker's process group; so it gets a session
of its own. It ends by itself: it reads a pipe that closes with the last process of the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import util

_MAIN = "from multiprocessing.resource_tracker import main"


def detached(arguments: Sequence[str]) -> list[str]:
    """
    >>> detached(["python", "-c", "from multiprocessing.resource_tracker import main;main(3)"])[-1]
    'import os;os.setsid();from multiprocessing.resource_tracker import main;main(3)'
    """
    return [
        f"import os;os.setsid();{argument}" if isinstance(argument, str) and argument.startswith(_MAIN) else argument
        for argument in arguments
    ]


def outlive() -> None:
    """For the tracker that this process starts, if it starts one."""
    spawn = util.spawnv_passfds

    def spawnv_passfds(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        return spawn(path, detached(args), passfds)

    util.__dict__["spawnv_passfds"] = spawnv_passfds
