"""A training script without torch, for tests of what happens around the training: rank 0 counts, and a checkpoint holds
the count. It prints what examples/digits/train.py prints."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from elasticjob_runtime.training import report_progress

STEP_SECONDS = 0.1


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rank, world = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
    checkpoint = Path(os.environ["ELASTICJOB_CHECKPOINT_DIRECTORY"], os.environ["ELASTICJOB_UID"], "step")
    checkpoint.parent.mkdir(exist_ok=True)
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    if rank == 0:
        print(f"{'resumed' if step else 'started'} step={step} world={world}", flush=True)
    while True:
        time.sleep(STEP_SECONDS)
        step += 1
        if rank == 0:
            save(checkpoint, step)
            if step % 5 == 0:
                print(f"step={step} world={world}", flush=True)
            report_progress(step)


def save(checkpoint: Path, step: int) -> None:
    """Whole or not at all."""
    part = checkpoint.with_suffix(".part")
    part.write_text(str(step))
    part.replace(checkpoint)


if __name__ == "__main__":
    main()
