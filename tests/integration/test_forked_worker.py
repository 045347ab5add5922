"""A worker forked from the zygote against one that is a fresh interpreter: a script cannot tell them apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PROBE = """
import atexit, json, multiprocessing, os, random, signal, sys, threading, time

def child(queue):
    queue.put(__name__)

if __name__ == "__main__":
    import numpy, torch
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,)); process.start(); seen = queue.get(); process.join()
    main = sys.modules["__main__"]
    left_open = open(sys.argv[1], "w"); left_open.write("kept")
    atexit.register(lambda: print("exit function ran", flush=True))
    print(json.dumps({
        "argv": sys.argv[1:], "path": sys.path[0], "name": __name__, "file": __file__, "package": __package__,
        "main": main.__dict__ is globals(), "globals": sorted(name for name in main.__dict__ if name.startswith("__")),
        "child": seen, "threads": threading.active_count(), "torch threads": torch.get_num_threads(), "cwd": os.getcwd(),
        "signals": [str(signal.getsignal(number)) for number in (2, 10, 12, 13, 15, 17)], "leader": os.getsid(0) == os.getpid(),
        "stdin": sys.stdin.read(),
    }), flush=True)
    print(random.random(), numpy.random.rand(), torch.rand(1).item(), flush=True)
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread ended", flush=True))).start()
    exec(os.environ.get("ENDING", ""))
"""


def elasticrun(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elasticjob_runtime", "--standalone", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    (tmp_path / "probe.py").write_text(PROBE)
    return tmp_path


def told(run: subprocess.CompletedProcess[str]) -> dict[str, object]:
    line = next((line for line in run.stdout.splitlines() if line.startswith("{")), None)
    assert line is not None, run.stderr
    found: dict[str, object] = json.loads(line)
    return found


@pytest.mark.parametrize("how", [("probe.py",), ("-m", "probe")])
def test_a_script_finds_what_an_interpreter_sets_up(probe: Path, how: tuple[str, ...]) -> None:
    forked = elasticrun(probe, *how, "left-open")
    kept = (probe / "left-open").read_text()
    spawned = elasticrun(probe, "--start-method=spawn", *how, "left-open")
    assert told(forked) == told(spawned)
    assert forked.returncode == spawned.returncode == 0
    assert kept == "kept"  # a file that the script left open is flushed
    assert forked.stdout.splitlines()[-2:] == spawned.stdout.splitlines()[-2:] == ["thread ended", "exit function ran"]


def test_random_numbers_repeat_in_every_restart(probe: Path) -> None:
    """Two forks of one zygote would have the same seeds."""
    run = elasticrun(probe, "--nproc-per-node=2", "--redirects=1", "--log-dir=logs", "probe.py", "x")
    assert run.returncode == 0, run.stderr
    rows = [log.read_text().splitlines()[1].split() for log in sorted(probe.glob("logs/*/attempt_1/*/stdout.log"))]
    assert len(rows) == 2
    assert all(one != other for one, other in zip(*rows, strict=True))


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("raise ValueError('no such data')", "ValueError: no such data"),
        ("sys.exit('bye')", "bye"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_every_end_is_told_alike(probe: Path, ending: str, words: str) -> None:
    runs = [elasticrun(probe, f"--start-method={method}", "probe.py", "x", ENDING=ending) for method in ("zygote", "spawn")]
    for run in runs:
        assert run.returncode == 1
        assert words in run.stderr
    assert "zygote_main" not in runs[0].stderr  # the traceback is the script's own


def test_an_import_that_starts_a_thread_hangs_every_worker(probe: Path) -> None:
    """It is left out, and the log says why; workers are forked as ever."""
    (probe / "busy.py").write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n")
    run = elasticrun(probe, "--preload=busy", "probe.py", "x", PYTHONPATH=str(probe))
    assert run.returncode == 0, run.stderr
    assert "busy is not preloaded, every worker imports it itself: importing it starts 1 thread" in run.stderr
    assert "spawned" not in run.stderr
