"""Whether the installed torch has libuv.

torch uses a libuv TCPStore by default, and raises an error if it was built without libuv, as Debian and some vendors
do. Importing torch to find out takes seconds, so this searches its library instead: libuv reads UV_THREADPOOL_SIZE, and
so the name is in every build that contains it.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import time
from pathlib import Path

_CHUNK = 8 << 20


def torch_library() -> Path | None:
    """libtorch_cpu.so of the torch that this interpreter would import; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    found = [root / "lib" / "libtorch_cpu.so", *sorted(Path("/usr/lib").glob("*/libtorch_cpu.so*"))]
    return next((path for path in found if path.exists()), None)


def lacks_libuv(library: Path | None) -> bool:
    """True if `library` certainly has no libuv. Takes 0.1-0.4 s, and lets other threads run in between."""
    if library is None:
        return False
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for start in range(0, len(data), _CHUNK):
                end = start + _CHUNK + 64
                if data.find(b"UV_THREADPOOL_SIZE", start, end) >= 0 or data.find(b"libuv.so", start, end) >= 0:
                    return False
                time.sleep(0)
    except (OSError, ValueError):
        return False
    return True


@functools.cache
def libuv_is_lacking() -> bool:
    """Whether the torch installed here lacks libuv; cached."""
    return lacks_libuv(torch_library())
