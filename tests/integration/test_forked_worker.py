"""A script cannot tell a worker process forked from the zygote from a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PROBE = """
import atexit, json, multiprocessing, os, signal, sys, threading, time

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
        "child": seen, "threads": threading.active_count(), "torch threads": torch.get_num_threads(),
        "cwd": os.getcwd(),
        "signals": [str(signal.getsignal(number)) for number in (2, 10, 12, 13, 15, 17)],
        "leader": os.getsid(0) == os.getpid(),
        "stdin": sys.stdin.read(),
    }), flush=True)
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread ended", flush=True))).start()
"""


def elasticrun(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elasticjob_runtime", "--standalone", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    (tmp_path / "probe.py").write_text(PROBE)
    return tmp_path


def reported(run: subprocess.CompletedProcess[str]) -> dict[str, object]:
    line = next((line for line in run.stdout.splitlines() if line.startswith("{")), None)
    assert line is not None, run.stderr
    found: dict[str, object] = json.loads(line)
    return found


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("probe.py",), id="script"),
        pytest.param(("-m", "probe"), id="module", marks=pytest.mark.nightly),
    ],
)
def test_a_forked_script_finds_what_a_fresh_interpreter_sets_up(probe: Path, how: tuple[str, ...]) -> None:
    forked = elasticrun(probe, *how, "left-open")
    kept = (probe / "left-open").read_text()
    spawned = elasticrun(probe, "--start-method=spawn", *how, "left-open")
    assert reported(forked) == reported(spawned)
    assert forked.returncode == spawned.returncode == 0
    assert kept == "kept"  # a file that the script leaves open is flushed
    assert forked.stdout.splitlines()[-2:] == spawned.stdout.splitlines()[-2:] == ["thread ended", "exit function ran"]


THREADS = """
import os, sys
os.environ.update(pair.split("=") for pair in sys.argv[1:])
import json, torch, torch.distributed
torch.manual_seed(0)
layers = torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.GELU(), torch.nn.Linear(512, 1)
model = torch.nn.Sequential(*layers)
for _ in range(5):  # SGD by hand: torch.optim imports torch._dynamo, which takes seconds
    model.zero_grad()
    model(torch.randn(128, 256)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
maximum = [line.strip() for line in torch.__config__.parallel_info().splitlines() if "max_threads" in line]
weights = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
found = {
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), *maximum], "weights": float(weights).hex(),
    "variable": os.environ.get("OMP_NUM_THREADS"), "debug": str(torch.distributed.get_debug_level()),
}
sys.stdout.write(json.dumps(found) + "\\n")  # one write for each rank; print makes two if unbuffered
"""
COMPILES = """
import torch._dynamo
print("compiles:", not torch._dynamo.config.disable)
"""


def of_rank_0(run: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert run.returncode == 0, run.stderr
    return reported(run)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--nproc-per-node=2"], id="two processes"),
        pytest.param(["--nproc-per-node=1"], id="one process", marks=pytest.mark.nightly),
    ],
)
def test_a_forked_worker_uses_as_many_threads_as_a_spawned_one_and_as_torchruns(
    tmp_path: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher sets OMP_NUM_THREADS=1 where it starts several worker processes. The weights are equal to the last
    bit: sums depend on the number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "threads.py").write_text(THREADS)
    forked = elasticrun(tmp_path, *flags, "threads.py")
    spawned = elasticrun(tmp_path, *flags, "--start-method=spawn", "threads.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *flags, "threads.py"]
    torchruns = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert of_rank_0(forked) == of_rank_0(spawned) == of_rank_0(torchruns)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_variables_set_before_torch_is_imported_take_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zygote has loaded torch already; variables that torch cannot follow any more are named."""
    for name in ("OMP_NUM_THREADS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_COMPILE_DISABLE", "OMP_PROC_BIND"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "threads.py").write_text(THREADS + COMPILES)
    settings = ["OMP_NUM_THREADS=1", "TORCH_DISTRIBUTED_DEBUG=DETAIL", "TORCH_COMPILE_DISABLE=1", "OMP_PROC_BIND=false"]
    forked = elasticrun(tmp_path, "threads.py", *settings)
    spawned = elasticrun(tmp_path, "--start-method=spawn", "threads.py", *settings)
    assert of_rank_0(forked) == of_rank_0(spawned)
    assert of_rank_0(forked)["debug"] == "DebugLevel.DETAIL"
    assert "compiles: False" in forked.stdout
    assert "compiles: False" in spawned.stdout
    assert "the script sets OMP_PROC_BIND after its libraries were preloaded" in forked.stderr
    assert "the script sets" not in spawned.stderr
