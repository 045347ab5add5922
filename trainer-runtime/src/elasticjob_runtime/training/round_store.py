"""Connects to the store that the agents host for a round."""

from __future__ import annotations

import datetime
import os
from typing import Any


def connect(host: str, port: int, timeout: float) -> Any:
    """A TCPStore. `timeout`: of each operation, in s. Raises what torch raises if it does not answer.

    Honours USE_LIBUV=0, which agents set for a torch that is built without libuv: TCPStore itself ignores it.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    libuv = {"use_libuv": False} if os.environ.get("USE_LIBUV") == "0" else {}
    return TCPStore(
        host, port, is_master=False, timeout=datetime.timedelta(seconds=timeout), wait_for_workers=False, **libuv
    )
