"""The zygote: a process that has imported torch once and forks a worker whenever one is needed.

The agent starts it with arguments FD AGENT_PID MODULE ... (client.start_command). It stays single-threaded and never
touches a GPU, so that its children are as good as fresh interpreters. It forks three kinds of process: preforked
workers, which wait for their command and environment; one store host per agent, which keeps the TCPStores of the next
rounds listening; and a successor, which has imported more (trial_imports.py).

Each child is forked twice, so that the agent, a subreaper, becomes its parent and reaps it like any other child.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from elasticjob_runtime.workers import descriptors, linux
from elasticjob_runtime.workers.zygote import ipc, late_environment, trial_imports
from elasticjob_runtime.workers.zygote.fork_safety import fork_problem
from elasticjob_runtime.workers.zygote.preload import ImportResults


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    agent = int(sys.argv[2])
    linux.die_with_parent(agent)
    # The agent decides when to stop, by closing the connection, but a terminal sends Ctrl-C to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = time.monotonic()
    late_environment.load_blas_single_threaded()
    # Many modules call `torch.cuda.is_available()` when they are imported, which must not initialise CUDA. Workers get
    # the user's value.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    failed, module, problem = preload(sys.argv[3:])
    if not problem:
        prepare_to_fork()
    message = {
        "ready": not problem,
        "failed": failed,
        "module": module,
        "problem": problem,
        "seconds": time.monotonic() - started,
    }
    ipc.send(connection, message)
    if problem:
        os._exit(0)  # without waiting for threads that an import started
    serve(connection, agent)


def preload(modules: Sequence[str]) -> tuple[dict[str, str], str, str | None]:
    """Imports modules until one makes this process unsafe to fork. Returns (module -> import error, that module or an
    empty string, why or None)."""
    failed: dict[str, str] = {}
    for name in modules:
        if error := trial_imports.import_one(name, anywhere=True):
            failed[name] = error
        if problem := fork_problem():
            return failed, name, problem
    return failed, "", fork_problem()


def prepare_to_fork() -> None:
    """Does what every worker would do in the same way, and keeps garbage collections in children from copying the pages
    they share.

    In torch 2.15, the first `init_process_group` of a process looks for backends in the metadata of every installed
    package, and empties caches. That was a third of what a worker computes until its first step.
    """
    c10d, rules = (sys.modules.get(f"torch.{name}") for name in ("distributed.distributed_c10d", "_dynamo.trace_rules"))
    with contextlib.suppress(AttributeError, KeyError, RuntimeError):  # internal to torch, and not in every version
        rules.__dict__["clear_lru_cache"]()
        for backend in ("gloo", "nccl"):
            c10d.__dict__["Backend"]._ensure_backend_registered(backend)
    gc.collect()
    gc.freeze()


def serve(connection: socket.socket, agent: int) -> None:
    """Forks a child for each request until the agent closes the connection."""
    users_of_torch = late_environment.users_of_torch()
    kinds: dict[str, Callable[[socket.socket, dict[str, Any], int], None]] = {
        "worker": functools.partial(prefork, users_of_torch),
        "stores": host_stores,
        "successor": become_successor,
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
            return  # to leave through the interpreter's own exit: atexit, flushing, threads
        os.waitpid(child, 0)
        ours.close()
        with contextlib.suppress(OSError):
            ipc.send(connection, {"forked": message["kind"]}, [theirs.fileno()])
        theirs.close()


def become_child_of(agent: int) -> None:
    while os.getppid() != agent:  # until the process in between is gone: microseconds
        if os.getppid() == 1 != agent:
            os._exit(1)
        time.sleep(0.0002)
    linux.die_with_parent(agent)


def prefork(users_of_torch: set[str], ours: socket.socket, message: dict[str, Any], _agent: int) -> None:
    """Waits for a command and becomes that worker. First, it does its per-rank imports. `message`: {"per_rank_imports",
    "environment"}."""
    from elasticjob_runtime.workers.zygote import script

    os.setsid()
    imports = message.get("per_rank_imports", [])
    variables_read = trial_imports.import_under(imports, message["environment"]) if imports else {}
    if imports and fork_problem():
        os._exit(0)  # until this process becomes a worker, a GPU belongs to the one before it
    if imports:
        users_of_torch = late_environment.users_of_torch()
    try:
        ipc.send(ours, {"pid": os.getpid(), "variables_read": variables_read})
        command, fds = ipc.receive(ours)
    except (EOFError, OSError):
        os._exit(0)
    script.run(command, fds, ours, users_of_torch)


def become_successor(ours: socket.socket, message: dict[str, Any], agent: int) -> None:
    """Tries the imports that were learned, then serves as a zygote. `message`: {"names", "results"}."""
    os.setsid()
    started = time.monotonic()
    results = ImportResults.from_message(message["results"])
    try:
        ipc.send(ours, {"pid": os.getpid()})
        trial_imports.import_in_forks(message["names"], results, lambda: become_child_of(agent))
        prepare_to_fork()
        ipc.send(ours, {"ready": True, "results": results.to_message(), "seconds": time.monotonic() - started})
    except OSError:
        os._exit(0)
    serve(ours, agent)
    os._exit(0)


def host_stores(ours: socket.socket, _message: dict[str, Any], _agent: int) -> None:
    """Keeps one fresh TCPStore listening on each port, so that the workers of a new round find their store at once: a
    client that connects too early waits half a second. The message `renew` replaces the store of a port that was
    used."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    os.setsid()  # a successor is killed by its process group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptors.raise_limit()  # each worker of the group has a connection to the store
    libuv = True

    def listen(port: int) -> object:
        return TCPStore("localhost", port, is_master=True, wait_for_workers=False, use_libuv=libuv)

    try:
        first, _ = ipc.receive(ours)
    except (EOFError, OSError):
        os._exit(0)  # the agent has a store host already
    ports: list[int] = first["ports"]
    try:
        listen(0)
    except RuntimeError:
        libuv = False  # this torch has none, or the next attempt raises the same error
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
            problem = str(error).partition("\n")[0] or "cannot open it"
        with contextlib.suppress(OSError):
            ipc.send(ours, {"renewed": port, "problem": problem})


if __name__ == "__main__":
    main()
