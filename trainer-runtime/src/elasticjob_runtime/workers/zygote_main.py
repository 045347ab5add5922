"""The zygote: a process that has imported torch once, and forks a worker whenever one is needed.

Started by the agent with arguments FD AGENT_PID quick|careful MODULE ... (see zygote.py). It stays single-threaded and never touches a GPU,
so that its children are as good as fresh interpreters. Three kinds of process leave it: parked workers, which wait for their command and
environment; one store host per agent, which keeps the TCPStores of coming epochs listening; rehearsals of imports, which end at once.

Every child that stays is forked twice, so that the agent (a subreaper) becomes its parent and waits for it as for any child.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from elasticjob_runtime.workers import blas, descriptors, linux, messages
from elasticjob_runtime.workers.preloading import LEARNED, within


@dataclasses.dataclass(slots=True)
class Imports:
    """What became of the modules to import."""

    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    """Module -> error. The worker will import it itself and see."""
    unfit: dict[str, str] = dataclasses.field(default_factory=dict)
    """Module -> why a process that has imported it must not be forked. It is left out."""
    module: str = ""
    """The module after which this very process must not be forked."""
    problem: str = ""
    """Why it must not; empty: it may."""


class Asked(dict[bytes, bytes]):
    """`os.environ`'s own dictionary, which notes what only a worker can answer: a module that asks when it is imported would take every
    worker for rank 0."""

    VARIABLES = frozenset({b"RANK", b"LOCAL_RANK", b"GROUP_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE", b"TORCHELASTIC_RESTART_COUNT"})

    name = ""

    def __getitem__(self, key: bytes) -> bytes:
        self._note(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)

    def _note(self, key: object) -> None:
        if isinstance(key, bytes) and key in self.VARIABLES:
            self.name = key.decode()


def listen_to_environ(*, on: bool) -> None:
    kind = Asked if on else dict
    os.environ._data = os.environb._data = kind(os.environ._data)  # type: ignore[attr-defined]


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    agent = int(sys.argv[2])
    linux.die_with_parent(agent)
    # The agent decides when to stop, by closing the connection; a terminal's Ctrl-C goes to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = time.monotonic()
    blas.start_single_threaded()
    # `torch.cuda.is_available()`, which many modules ask when they are imported, must not initialise CUDA. Workers get the user's value.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    listen_to_environ(on=True)
    imports = preload(sys.argv[4:], careful=sys.argv[3] == "careful")
    listen_to_environ(on=False)
    ready: dict[str, Any] = dataclasses.asdict(imports)
    messages.send(connection, {**ready, "ready": not imports.problem, "seconds": time.monotonic() - started})
    if imports.problem:
        os._exit(0)  # nothing of whatever was started needs to end well
    gc.collect()
    gc.freeze()  # children share these pages; a collection must not copy them
    serve(connection, agent)


def preload(modules: Sequence[str], *, careful: bool) -> Imports:
    """Imports what can be imported; `?name`: only where it is an installed module, and, where `careful`, only after a rehearsal."""
    imports = Imports()
    learned = [name.removeprefix(LEARNED) for name in modules if careful and name.startswith(LEARNED)]
    for given in modules[: len(modules) - len(learned)]:
        name = given.removeprefix(LEARNED)
        import_one(name, imports, anywhere=name == given)
        if name == given:
            listen_to_environ(on=True)  # anew: torch may ask what it likes, and the user what the user named
        if problem := unfit(learned=name != given):
            imports.module, imports.problem = name, problem
            return imports
    while learned:
        fit, problem = rehearse(learned)
        for name in learned[:fit]:
            import_one(name, imports)
        if fit < len(learned):
            imports.unfit[learned[fit]] = problem
        learned = [name for name in learned[fit + 1 :] if not within(name, learned[fit])]
    imports.problem = unfit()
    return imports


def import_one(name: str, imports: Imports, *, anywhere: bool = False) -> None:
    try:
        if anywhere or installed(name):
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any module may raise anything; the worker will import it itself and see
        imports.failed[name] = f"{type(error).__name__}: {error}"


def rehearse(names: Sequence[str]) -> tuple[int, str]:
    """Imports them in a fork. Returns how many of them, from the first on, leave a process fit to be forked, and what the next one does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with contextlib.suppress(BaseException):
            rehearsal(names, writing)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        lines = said.read().decode().splitlines()
    _, status = os.waitpid(child, 0)
    if lines and lines[-1].startswith("{"):
        return len(lines) - 1, json.loads(lines[-1])["problem"]
    return len(lines), f"importing it ends the process (status {status})"


def rehearsal(names: Sequence[str], told: int) -> None:
    """Writes a line for each, a problem as JSON."""
    linux.die_with_parent(os.getppid())
    for name in names:
        import_one(name, Imports())
        if problem := unfit(learned=True):
            os.write(told, json.dumps({"problem": problem}).encode() + b"\n")
            return
        os.write(told, b"fit\n")


def installed(name: str) -> bool:
    """Is it a module of site-packages? A user's own modules may do anything when they are imported, and may change."""
    spec = importlib.util.find_spec(name)
    origin = spec.origin if spec else None
    return origin is not None and ("site-packages" in origin or "dist-packages" in origin)


def unfit(*, learned: bool = False) -> str:
    """Why this process must not be forked; empty: it may. `learned`: after the import of a learned module, which may be left out."""
    asked = getattr(os.environ._data, "name", "") if learned else ""  # type: ignore[attr-defined]
    if asked:
        return f"importing it reads {asked}"
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"importing it starts {threads - 1} thread{'s' if threads > 2 else ''}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "importing it initialises CUDA"
    if device := open_device(linux.open_files()):
        return f"importing it opens {device}"
    return ""


def open_device(files: Iterable[str]) -> str:
    """A file that a process has open once its CUDA or ROCm driver is initialised, which no fork survives. Asking NVML does not open these.

    >>> open_device(["/dev/null", "/dev/nvidiactl", "/dev/nvidia-uvm"])
    '/dev/nvidia-uvm'
    """
    return next((file for file in files if file in ("/dev/nvidia-uvm", "/dev/kfd")), "")


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
    try:
        messages.send(ours, {"pid": os.getpid()})
        message, fds = messages.receive(ours)
    except (EOFError, OSError):
        os._exit(0)
    script.run(message, fds, ours)


def host_stores(ours: socket.socket) -> None:
    """Keeps one fresh TCPStore listening on each port, so that a new world finds its store at once (a client that comes too early waits
    half a second). `renew` replaces the store of a port that was used."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptors.raise_limit()  # each worker of the group has a connection to the store
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
        problem = ""
        try:
            stores[port] = listen(port)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0] or "it cannot be opened"
        with contextlib.suppress(OSError):
            messages.send(ours, {"renewed": port, "problem": problem})


if __name__ == "__main__":
    main()
