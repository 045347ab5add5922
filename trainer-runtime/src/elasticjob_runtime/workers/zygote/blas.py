"""OpenBLAS (in numpy's wheels) starts its threads when it is loaded, which would make the zygote unfit to fork.

So the zygote loads it with one thread, and every child sets the number that it would have had as a fresh interpreter.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "OPENBLAS_NUM_THREADS"


def start_single_threaded() -> None:
    """Call before numpy is imported."""
    os.environ.setdefault(VARIABLE, "1")


def restore_threads(environment: Mapping[str, str]) -> None:
    """Gives every loaded OpenBLAS the threads that a fresh process with `environment` has."""
    asked = environment.get(VARIABLE) or environment.get("OMP_NUM_THREADS") or ""
    count = int(asked) if asked.isdigit() else len(os.sched_getaffinity(0))
    for library in _loaded():
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads"):
            function = getattr(library, name, None)
            if function is not None:
                function(ctypes.c_int(count))
                break


def _loaded() -> list[ctypes.CDLL]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.rsplit(" ", 1)[-1] for line in maps if "openblas" in line and ".so" in line}
    return [ctypes.CDLL(path) for path in sorted(paths)]
