"""Writes what a worker process finds when it starts to $PROBE_DIRECTORY/<rank>-<restart>.json. Run by
test_worker_environment.

`fail-once`: the last rank fails at first, so that a restart is recorded too.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys


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
    pathlib.Path(os.environ["PROBE_DIRECTORY"], f"{rank}-{restart}.json").write_text(json.dumps(found))
    last = rank == str(int(os.environ["WORLD_SIZE"]) - 1)
    return int("fail-once" in sys.argv and last and restart == "0")


if __name__ == "__main__":
    sys.exit(main())
