"""A script behaves in a forked worker process as under `python -u script.py`, to its exit code and last byte of output.

One zygote without torch serves nearly all of them, so that each script takes a moment only.
"""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import pytest
from elasticjob_runtime.workers.zygote import ipc
from elasticjob_runtime.workers.zygote.client import start_command
from elasticjob_runtime.workers.zygote.launcher import PRELOAD

from hack.support import eventually
from tests.integration.runtime.agents import SOURCE, is_alive
from tests.integration.runtime.subreaper import subreaper

Result = tuple[int, bytes, bytes]
"""(exit code, standard output, standard error)."""


class Zygote:
    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = ("threading",)) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
        self._connection, theirs = socket.socketpair()
        command = start_command(sys.executable, theirs.fileno(), modules)
        self._process = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        assert ipc.receive(self._connection)[0]["ready"]

    def run(self, script: pathlib.Path, given: bytes) -> Result:
        ipc.send(self._connection, {"kind": "worker"})
        worker = socket.socket(fileno=ipc.receive(self._connection)[1][0])
        pid = ipc.receive(worker)[0]["pid"]
        files = [script.with_suffix(suffix) for suffix in (".in", ".out", ".err")]
        files[0].write_bytes(given)
        fds = [os.open(file, os.O_RDWR | os.O_CREAT) for file in files]
        command = [sys.executable, "-u", str(script)]
        message = {
            "environment": self.environment,
            "command": command,
            "arguments": command[2:],
            "module": False,
            "stdio": [0, 1, 2],
        }
        ipc.send(worker, message, fds)
        for fd in fds:
            os.close(fd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        worker.close()
        return code, files[1].read_bytes(), files[2].read_bytes()

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def run_plain(script: pathlib.Path, given: bytes, environment: Mapping[str, str]) -> Result:
    run = subprocess.run(
        [sys.executable, "-u", script],
        input=given,
        capture_output=True,
        env=dict(environment),
        check=False,
    )
    return run.returncode, run.stdout, run.stderr


@pytest.fixture(scope="module", autouse=True)
def parent_of_forked_workers() -> Iterator[None]:
    with subreaper():
        yield


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote({})
    yield made
    made.close()


STREAMS = """
import sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, type(stream.buffer).__name__)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
"""

DAEMONS = """
import threading, time
box = [1]
def look(): return box[0]
def forever():
    while True:
        try:
            look()
        except BaseException as error:
            import os; os.write(2, repr(error).encode()); os._exit(9)
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
"""

MAIN_THREAD = """
import os, threading
print(threading.main_thread().native_id == os.getpid(), threading.main_thread() is threading.current_thread())
"""


@pytest.mark.parametrize(
    ("script", "given"),
    [
        pytest.param(STREAMS, b"", id="names, modes and encodings of streams"),
        pytest.param(
            "import os, sys; print('x', end=''); sys.stdout.buffer.write(b'\\xff'); os._exit(3)",
            b"",
            id="unflushed output",
        ),
        pytest.param(
            "import sys; print(ascii(sys.stdin.read()), sys.__stdin__.read())", b"\xff\0", id="input that is not UTF-8"
        ),
        pytest.param("import sys; sys.stdout.close(); sys.exit('a word')", b"", id="closes standard output"),
        pytest.param("import os; os.closerange(0, 100)", b"", id="closes all descriptors"),
        pytest.param("raise SystemExit((1, 2))", b"", id="exit code that is a tuple"),
        pytest.param(
            "class E(Exception):\n def __str__(self): raise OSError\nraise E",
            b"",
            id="exception that cannot be printed",
        ),
        pytest.param("raise ValueError('\\udcff\\0' + 'x' * 3_000_000)", b"", id="very long message"),
        pytest.param("raise ExceptionGroup('many', [ValueError(1), KeyError(2)])", b"", id="exception group"),
        pytest.param("import ctypes; ctypes.string_at(0)", b"", id="segmentation fault"),
        pytest.param("\ufeffprint('a')\r\nif 1:\r\n  print('b')", b"", id="BOM and CRLF"),
        pytest.param(DAEMONS, b"", id="daemon threads at exit"),
        pytest.param("class A:\n def __del__(self): print('let go')\na = A()", b"", id="destructor at exit"),
        pytest.param(MAIN_THREAD, b"", id="main thread"),
    ],
)
def test_a_forked_script_behaves_as_under_plain_python(
    zygote: Zygote, tmp_path: pathlib.Path, script: str, given: bytes
) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(script.encode(errors="surrogatepass"))
    assert zygote.run(path, given) == run_plain(path, given, zygote.environment)


VARIABLES = {
    "PYTHONIOENCODING": ("latin-1:replace", "print('\\xfc \\u4e2d')"),
    "PYTHONSAFEPATH": ("1", "import sys; print(sys.path)"),
    "PYTHONOPTIMIZE": ("2", "assert False"),
    "PYTHONWARNINGS": ("error", "import warnings; warnings.warn('now')"),
    "LC_ALL": ("C", "print('\\xfc')"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_the_interpreter_take_effect(tmp_path: pathlib.Path, name: str) -> None:
    value, script = VARIABLES[name]
    zygote, path = Zygote({name: value}), tmp_path / "script.py"
    path.write_text(script)
    try:
        assert zygote.run(path, b"") == run_plain(path, b"", zygote.environment)
    finally:
        zygote.close()


def test_a_worker_process_of_an_agent_under_nohup_ignores_sighup(tmp_path: pathlib.Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        zygote = Zygote({})
    finally:
        signal.signal(signal.SIGHUP, before)
    path = tmp_path / "script.py"
    path.write_text("import signal; print(signal.getsignal(signal.SIGHUP).name)")
    assert zygote.run(path, b"")[1] == b"SIG_IGN\n"
    zygote.close()


SHOWN = """
import pathlib
print(pathlib.Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").replace(b"\\0", b" ").decode())
"""


def test_ps_and_pgrep_find_a_worker_process_by_its_script(zygote: Zygote, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SHOWN)
    _, shown, _ = zygote.run(path, b"")
    assert shown == run_plain(path, b"", zygote.environment)[1]


SEMAPHORES = """
import multiprocessing, os, signal, sys, time
context = multiprocessing.get_context("spawn")
lock = context.Lock()
print(lock._semlock.name.removeprefix("/"), flush=True)
from multiprocessing import resource_tracker
tracker = resource_tracker._resource_tracker._pid
print(tracker, flush=True)
while os.getsid(tracker) == os.getsid(0): time.sleep(0.01)
os.killpg(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_worker_process_leaves_no_semaphore_behind(zygote: Zygote, tmp_path: pathlib.Path) -> None:
    """DataLoaders that are spawned or come from a fork server create dozens; the agent kills everything that a worker
    process started."""
    path = tmp_path / "script.py"
    path.write_text(SEMAPHORES)
    code, output, _ = zygote.run(path, b"")
    name, tracker = output.decode().split()
    assert code == -signal.SIGKILL
    eventually(lambda: not pathlib.Path("/dev/shm", f"sem.{name}").exists(), what="the semaphore is removed")
    eventually(lambda: not is_alive(int(tracker)), what="the resource tracker ends on its own")


@pytest.fixture(scope="module")
def torch_zygote() -> Iterator[Zygote]:
    made = Zygote({}, PRELOAD)
    yield made
    made.close()


@pytest.mark.torch
def test_a_restart_copies_few_of_the_pages_that_worker_processes_share(
    torch_zygote: Zygote, tmp_path: pathlib.Path
) -> None:
    """The kernel copies each page that a forked process writes to, reference counts included: a look at every loaded
    module is 3,000 pages, and took longer than the rest of the start. About 1,800 are left, most before the restart."""
    script = tmp_path / "script.py"
    script.write_text("import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)")
    code, printed, errors = torch_zygote.run(script, b"")
    assert code == 0, errors
    assert int(printed) < 3000


FIRST_GROUP = """
import importlib.metadata
import torch
import torch.distributed as dist
importlib.metadata.entry_points = lambda **_: print("reads every package's metadata") or []
print(torch._dynamo.trace_rules.get_torch_obj_rule_map.cache_info().currsize, "cached")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.torch
def test_a_restart_does_not_repeat_what_torch_does_once_in_each_process(
    torch_zygote: Zygote, tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(FIRST_GROUP)
    assert torch_zygote.run(script, b"") == (0, b"0 cached\n", b"")
