"""The zygote: a process that has imported torch once, and forks a worker whenever one is needed.

Started by the agent with arguments FD AGENT_PID MODULE ... (see zygote.py). It stays single-threaded and never touches a GPU, so that its
children are as good as fresh interpreters. Three kinds of process leave it: parked workers, which wait for their command and
environment; one store host per agent, which keeps the TCPStores of coming epochs listening; nothing else.

Every child is forked twice, so that the agent (a subreaper) becomes its parent and waits for it as for any child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from elasticjob_runtime.workers import blas, linux, messages


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    agent = int(sys.argv[2])
    linux.die_with_parent(agent)
    # The agent decides when to stop, by closing the connection; a terminal's Ctrl-C goes to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = time.monotonic()
    blas.start_single_threaded()
    failed = preload(sys.argv[3:])
    problem = unfit()
    ready = {"ready": not problem, "problem": problem, "failed": failed, "seconds": time.monotonic() - started}
    messages.send(connection, ready)
    if problem:
        return
    gc.collect()
    gc.freeze()  # children share these pages; a collection must not copy them
    serve(connection, agent)


def preload(modules: list[str]) -> dict[str, str]:
    """Imports what can be imported; `?name`: only where it is an installed module. Returns the error of each that could not."""
    failed = {}
    for given in modules:
        name = given.removeprefix("?")
        try:
            if name == given or installed(name):
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - any module may raise anything; the worker will import it itself and see
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def installed(name: str) -> bool:
    """Is it a module of site-packages? A user's own modules may do anything when they are imported, and may change."""
    spec = importlib.util.find_spec(name)
    origin = spec.origin if spec else None
    return origin is not None and ("site-packages" in origin or "dist-packages" in origin)


def unfit() -> str:
    """Why this process must not be forked; empty: it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"an imported module started {threads - 1} threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an imported module initialised CUDA"
    return ""


def serve(connection: socket.socket, agent: int) -> None:
    """Forks a child for each request until the agent closes the connection."""
    kinds: dict[str, Callable[[socket.socket], None]] = {"worker": park, "stores": host_stores}
    while True:
        try:
            message, _ = messages.receive(connection)
        except (EOFError, OSError):
            return
        theirs, ours = socket.socketpair()
        child = os.fork()
        if child == 0:
            if os.fork():
                os._exit(0)
            become_child(connection, theirs, agent)
            kinds[message["kind"]](ours)
            return  # leave through the interpreter's own exit: atexit, flushing, threads
        os.waitpid(child, 0)
        ours.close()
        with contextlib.suppress(OSError):
            messages.send(connection, {"forked": message["kind"]}, [theirs.fileno()])
        theirs.close()


def become_child(zygote_connection: socket.socket, theirs: socket.socket, agent: int) -> None:
    zygote_connection.close()
    theirs.close()
    while os.getppid() != agent:  # until the process between us has gone: microseconds
        if os.getppid() == 1 != agent:
            os._exit(1)
        time.sleep(0.0002)
    linux.die_with_parent(agent)


def park(ours: socket.socket) -> None:
    """Waits for a command, then becomes that worker."""
    from elasticjob_runtime.workers import script  # here, so that the zygote's own start stays light

    os.setsid()
    messages.send(ours, {"pid": os.getpid()})
    try:
        message, fds = messages.receive(ours)
    except (EOFError, OSError):
        os._exit(0)
    script.run(message, fds, ours)


def host_stores(ours: socket.socket) -> None:
    """Keeps one fresh TCPStore listening on each port, so that a new world finds its store at once (a client that comes too early waits
    half a second). `renew` replaces the store of a port that was used."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libuv = True

    def listen(port: int) -> object:
        return TCPStore("localhost", port, is_master=True, wait_for_workers=False, use_libuv=libuv)

    first, _ = messages.receive(ours)
    ports: list[int] = first["ports"]
    try:
        listen(0)
    except RuntimeError:
        libuv = False  # Debian's torch, and some vendors': the next try shows any other trouble
    try:
        stores = {port: listen(port) for port in ports}
    except RuntimeError as error:
        messages.send(ours, {"error": str(error)})
        os._exit(1)
    messages.send(ours, {"pid": os.getpid(), "libuv": libuv})
    while True:
        try:
            message, _ = messages.receive(ours)
        except (EOFError, OSError):
            os._exit(0)
        port = message["renew"]
        stores.pop(port, None)
        with contextlib.suppress(RuntimeError):
            stores[port] = listen(port)


if __name__ == "__main__":
    main()
