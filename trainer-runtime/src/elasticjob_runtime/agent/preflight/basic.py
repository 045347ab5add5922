"""The check `Basic`: what can be told of this machine within a second or two, without torch."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping

from elasticjob_runtime.contract import Env
from elasticjob_runtime.etcd.interface import Store
from elasticjob_runtime.membership.preflight import ACCELERATORS, COMPUTE, ROUND_TRIP

logger = logging.getLogger(__name__)

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - not a file of ours
_LEAST_FREE = 0.02
"""Of a file system."""
_ROUNDS, _TIMES = 40_000, 5
_GPUS = ("/dev/nvidia[0-9]*", "/dev/accel[0-9]*")
_SMI_SECONDS = 10.0
_SMI = ("nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total,retired_pages.pending")


def failures(environment: Mapping[str, str]) -> dict[str, str]:
    """The checks that fail by themselves: what each of them found. A full checkpoint directory is only warned of: it is
    hardly ever this machine's own."""
    if (full := low_space(environment.get(Env.CHECKPOINT_DIRECTORY, ""))) is not None:
        logger.warning("preflight: the checkpoint directory %s: saving may fail", full)
    found = {"shm": low_space(SHARED_MEMORY), "nvidia-smi": gpu_faults()}
    return {check: text for check, text in found.items() if text is not None}


def measurements(store: Store, key: str) -> dict[str, float]:
    """What is compared with the others. Raises StoreError."""
    return {
        COMPUTE: compute_seconds(),
        ROUND_TRIP: _least(lambda: store.get(key)),
        ACCELERATORS: float(sum(len(glob.glob(pattern)) for pattern in _GPUS)),
    }


def compute_seconds() -> float:
    """How long a fixed computation takes. The shortest of several: what else runs meanwhile is not the machine's
    fault."""
    return _least(lambda: hashlib.pbkdf2_hmac("sha256", b"preflight", b"elasticjob", _ROUNDS))


def _least(call: Callable[[], object]) -> float:
    return min(_seconds(call) for _ in range(_TIMES))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def low_space(folder: str) -> str | None:
    """What is wrong with the free space of a folder; None: nothing, or there is no such folder yet."""
    if not folder or not os.path.isdir(folder):
        return None
    usage = shutil.disk_usage(folder)
    if not usage.total or usage.free / usage.total >= _LEAST_FREE:
        return None
    return f"{folder} has {usage.free >> 20} MiB free of {usage.total >> 20} MiB"


def gpu_faults() -> str | None:
    """What nvidia-smi says about GPUs that should not be used; None: nothing, or there is no nvidia-smi."""
    program = shutil.which(_SMI[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *_SMI[1:], "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=_SMI_SECONDS, stdin=subprocess.DEVNULL, errors="replace",
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {_SMI_SECONDS:g} s"
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return ": ".join([f"exit code {done.returncode}", *last])[:200]
    return gpu_faults_in(done.stdout)


def gpu_faults_in(table: str) -> str | None:
    """`table`: lines of `index, uncorrected errors, pending`. What a GPU does not support is `[N/A]`.

    >>> gpu_faults_in("0, 0, No\\n1, 3, Yes\\n2, [N/A], [N/A]\\n")
    'GPU 1 has 3 uncorrected ECC errors and pages that are to be retired'
    """
    for line in table.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 3:
            continue
        index, errors, pending = fields
        faults = [f"{errors} uncorrected ECC errors"] if errors.isdecimal() and int(errors) else []
        faults += ["pages that are to be retired"] if pending == "Yes" else []
        if faults:
            return f"GPU {index} has {' and '.join(faults)}"
    return None
