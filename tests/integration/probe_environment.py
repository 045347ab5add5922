"""Writes what a worker process finds when it starts to $PROBE_DIRECTORY/<rank>-<restart>.json. Run by
test_worker_environment.

`fail-once`: the last rank fails at first, once the others have written, so that a restart is recorded too.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time


def main() -> int:
    rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    found = {
        "environment": dict(os.environ),
        "argv": sys.argv,
        "path": sys.path[0],
        "directory": os.getcwd(),
        "name": __name__,
        "can_record_errors": os.access(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]), os.W_OK),
        "unbuffered": sys.stdout.write_through,  # type: ignore[union-attr]
    }
    reports, world = pathlib.Path(os.environ["PROBE_DIRECTORY"]), int(os.environ["WORLD_SIZE"])
    (reports / f"{rank}-{restart}.new").write_text(json.dumps(found))
    (reports / f"{rank}-{restart}.new").rename(reports / f"{rank}-{restart}.json")
    if "fail-once" not in sys.argv or rank != str(world - 1) or restart != "0":
        return 0
    while not all((reports / f"{other}-0.json").exists() for other in range(world)):
        time.sleep(0.05)
    return 1


if __name__ == "__main__":
    sys.exit(main())
