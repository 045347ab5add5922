"""The zygote: a process that has imported torch once, and forks a worker whenever one is needed.

Started by the agent with arguments FD AGENT_PID MODULE ... (see zygote.py). It stays single-threaded and never touches
a GPU, so that its children are as good as fresh interpreters. Three kinds of process leave it: parked workers, which
wait for their command and environment; one store host per agent, which keeps the TCPStores of coming rounds listening;
a successor, which has imported more (trial_imports.py).

Every child that stays is forked twice, so that the agent (a subreaper) becomes its parent and waits for it as for any
child.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from elasticjob_runtime.workers import descriptors, linux
from elasticjob_runtime.workers.zygote import blas, ipc, trial_imports
from elasticjob_runtime.workers.zygote.preload import Verdicts


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    agent = int(sys.argv[2])
    linux.die_with_parent(agent)
    # The agent decides when to stop, by closing the connection; a terminal's Ctrl-C goes to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = time.monotonic()
    blas.start_single_threaded()
    # `torch.cuda.is_available()`, which many modules ask when they are imported, must not initialise CUDA. Workers get
    # the user's value.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    failed, module, problem = preload(sys.argv[3:])
    told = {
        "ready": not problem,
        "failed": failed,
        "module": module,
        "problem": problem,
        "seconds": time.monotonic() - started,
    }
    ipc.send(connection, told)
    if problem:
        os._exit(0)  # nothing of whatever was started needs to end well
    freeze()
    serve(connection, agent)


def preload(modules: Sequence[str]) -> tuple[dict[str, str], str, str]:
    """Imports what can be imported. Returns (module -> what went wrong, the module after which this process must not be
    forked, why)."""
    failed: dict[str, str] = {}
    for name in modules:
        if error := trial_imports.import_one(name, anywhere=True):
            failed[name] = error
        if problem := trial_imports.unfit():
            return failed, name, problem
    return failed, "", trial_imports.unfit()


def freeze() -> None:
    """Children share these pages; a collection must not copy them."""
    gc.collect()
    gc.freeze()


def serve(connection: socket.socket, agent: int) -> None:
    """Forks a child for each request until the agent closes the connection."""
    kinds: dict[str, Callable[[socket.socket, dict[str, Any], int], None]] = {
        "worker": park,
        "stores": host_stores,
        "successor": succeed,
    }
    while True:
        try:
            message, _ = ipc.receive(connection)
        except (EOFError, OSError):
            return
        theirs, ours = socket.socketpair()
        child = os.fork()
        if child == 0:
            if os.fork():
                os._exit(0)
            connection.close()
            theirs.close()
            become_child_of(agent)
            kinds[message["kind"]](ours, message, agent)
            return  # leave through the interpreter's own exit: atexit, flushing, threads
        os.waitpid(child, 0)
        ours.close()
        with contextlib.suppress(OSError):
            ipc.send(connection, {"forked": message["kind"]}, [theirs.fileno()])
        theirs.close()


def become_child_of(agent: int) -> None:
    while os.getppid() != agent:  # until the process between us has gone: microseconds
        if os.getppid() == 1 != agent:
            os._exit(1)
        time.sleep(0.0002)
    linux.die_with_parent(agent)


def park(ours: socket.socket, message: dict[str, Any], _agent: int) -> None:
    """Waits for a command, then becomes that worker. Before, it imports what only a worker can: {"late",
    "environment"}."""
    from elasticjob_runtime.workers.zygote import script

    os.setsid()
    late = message.get("late", [])
    seen = trial_imports.import_for(late, message["environment"]) if late else {}
    if late and trial_imports.unfit():
        os._exit(0)  # it may be no worker but the one whose turn it is: a GPU is the predecessor's
    try:
        ipc.send(ours, {"pid": os.getpid(), "seen": seen})
        command, fds = ipc.receive(ours)
    except (EOFError, OSError):
        os._exit(0)
    script.run(command, fds, ours)


def succeed(ours: socket.socket, message: dict[str, Any], agent: int) -> None:
    """Imports what was learned, then takes the place of the zygote that forked it: {"names", "verdicts"}."""
    os.setsid()
    started = time.monotonic()
    verdicts = Verdicts.of(message["verdicts"])
    try:
        ipc.send(ours, {"pid": os.getpid()})
        trial_imports.take(message["names"], verdicts, lambda: become_child_of(agent))
        ipc.send(ours, {"ready": True, "verdicts": verdicts.to_message(), "seconds": time.monotonic() - started})
    except OSError:
        os._exit(0)
    freeze()
    serve(ours, agent)
    os._exit(0)


def host_stores(ours: socket.socket, _message: dict[str, Any], _agent: int) -> None:
    """Keeps one fresh TCPStore listening on each port, so that a new world finds its store at once (a client that comes
    too early waits half a second). `renew` replaces the store of a port that was used."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptors.raise_limit()  # each worker of the group has a connection to the store
    libuv = True

    def listen(port: int) -> object:
        return TCPStore("localhost", port, is_master=True, wait_for_workers=False, use_libuv=libuv)

    first, _ = ipc.receive(ours)
    ports: list[int] = first["ports"]
    try:
        listen(0)
    except RuntimeError:
        libuv = False  # Debian's torch, and some vendors': the next try shows any other trouble
    try:
        stores = {port: listen(port) for port in ports}
    except RuntimeError as error:
        ipc.send(ours, {"error": str(error)})
        os._exit(1)
    ipc.send(ours, {"pid": os.getpid(), "libuv": libuv})
    while True:
        try:
            message, _ = ipc.receive(ours)
        except (EOFError, OSError):
            os._exit(0)
        port = message["renew"]
        stores.pop(port, None)
        problem = ""
        try:
            stores[port] = listen(port)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0] or "it cannot be opened"
        with contextlib.suppress(OSError):
            ipc.send(ours, {"renewed": port, "problem": problem})


if __name__ == "__main__":
    main()
