"""Which version of the runtime lies in a folder. Few imports: every container start pays for them."""

from __future__ import annotations

import os

PREFIX, SUFFIX = "elasticjob_runtime-", ".dist-info"


def version_in(folder: str) -> str:
    """The version of the runtime that is installed in `folder`, from the name of its metadata."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        names = []
    found = [name[len(PREFIX) : -len(SUFFIX)] for name in names if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    return found[-1] if found else "(unknown version)"
