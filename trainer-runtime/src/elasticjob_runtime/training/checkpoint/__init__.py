"""A directory of checkpoints: each is written completely or not at all, named by its step, and verified when read.

    checkpoint.save("/checkpoints", step, lambda file: pickle.dump(state, file))
    found = checkpoint.load("/checkpoints", pickle.load)    # the newest intact one, or None

`elasticjob_runtime.training` adds torch's serializer. This package uses the standard library only and works with any
serializer, on local disks and on shared file systems, even if two processes write by mistake.

Errors:

    CheckpointError         A checkpoint cannot be written or read, and a person has to fix the cause: a full disk,
                            permissions, a path that is not a directory. Existing checkpoints are untouched.
    FencedError             A newer worker group of the job saves in this directory, so this one may not.

A corrupt or incomplete checkpoint is not an error: it is skipped for the previous one, with one warning in the log.
"""

from elasticjob_runtime.training.checkpoint.directory import (
    DEFAULT_KEEP,
    Checkpoint,
    FencedError,
    continue_from,
    load,
    newest_state,
    save,
    steps,
    this_job,
    this_writer,
)
from elasticjob_runtime.training.checkpoint.reading import CheckpointError

__all__ = [
    "DEFAULT_KEEP",
    "Checkpoint",
    "CheckpointError",
    "FencedError",
    "continue_from",
    "load",
    "newest_state",
    "save",
    "steps",
    "this_job",
    "this_writer",
]
