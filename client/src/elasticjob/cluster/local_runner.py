"""The process that runs one job on this machine: `python -m elasticjob.cluster.local_runner FOLDER LOCK`.

It is given the job on its standard input, and the descriptor of the lock of its folder, which it holds to its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from elasticjob.cluster.local import LOG, NAMESPACE, TERMINATION, Json, condition, finish, read_job, timestamp, write
from elasticjob.state import job_state, training_container

LAUNCH = """
import os, select, signal
from elasticjob_runtime.launch import main
first = os.pidfd_open(os.getpid())
if not os.fork():
    os.closerange(1, 3)
    select.select([0, first], [], [])
    os.killpg(0, signal.SIGKILL)
os.close(first)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
main()
"""
"""What a container runs before its command, so that it runs under elasticrun. A second process ends the whole process
group when the command or the process that runs the job (at the other end of standard input) has ended, as a container
ends with its first process."""


def run(folder: Path, job: Json) -> None:
    """Runs a job from its start to its end, in a process of its own."""
    state, container = job_state(job), training_container(job)
    (folder / TERMINATION).touch()
    gpus = any("gpu" in limit for limit in (container.get("resources") or {}).get("limits") or ())
    processes = state.replicas * (int(state.procs) if state.procs.isdecimal() else 1)
    checkpoints = folder.parent.parent / "checkpoints" / state.name
    checkpoints.mkdir(parents=True, exist_ok=True)
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PET_NPROC_PER_NODE": "auto" if gpus else str(processes),
        "PET_MAX_RESTARTS": str(state.max_restarts),
        "ELASTICJOB_NAME": state.name,
        "ELASTICJOB_NAMESPACE": NAMESPACE,
        "ELASTICJOB_UID": state.uid,
        "ELASTICJOB_CHECKPOINT_DIRECTORY": str(checkpoints),
        "ELASTICJOB_TERMINATION_LOG": str(folder / TERMINATION),
    }
    env = [variable for variable in container.get("env") or () if not variable.get("valueFrom")]
    users = {variable["name"]: str(variable.get("value") or "") for variable in env}
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *state.command],
        env={**os.environ, **variables, **users},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # as a kubelet that deletes the pod
        condition(job, "Running", "Training", "Round 1: the worker processes are training.")
        sizes = {"workers": "1/1", "replicas": 1, "readyReplicas": 1, "desiredReplicas": 1}
        job["status"] |= {**sizes, "round": 1, "worldSize": processes, "startTime": timestamp()}
        write(folder, job)
        assert process.stdout is not None
        with (folder / LOG).open("ab", buffering=0) as log:
            for line in process.stdout:
                log.write(f"{timestamp()} ".encode() + line.rstrip(b"\n") + b"\n")
    reason = (folder / TERMINATION).read_text(errors="replace").strip()
    finish(job, process.returncode, reason or f"elasticrun ended with exit code {process.returncode}.")
    write(folder, job)


def main() -> None:
    folder, lock = Path(sys.argv[1]), int(sys.argv[2])
    run(folder, json.load(sys.stdin))
    os.close(lock)
    read_job(folder)  # removes it if it is to be deleted


if __name__ == "__main__":
    main()
