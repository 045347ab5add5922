"""Checkpoints in a directory: written whole or not at all, named by step, checked when read.

    checkpoint.save("/checkpoints", step, lambda file: pickle.dump(state, file))
    found = checkpoint.load("/checkpoints", pickle.load)    # the newest that is whole, or None

Called by `elasticjob_runtime.training`, which brings torch's serializer; standard library only, so that any script and
any serializer can use it. Works on local disks and on folders shared over the network, also where two processes write
by mistake.

Errors:

    CheckpointError         a checkpoint cannot be written or read, and a person must mend it: a full disk, permissions,
                            a path that is no directory. What was there before is untouched.
    FencedError             a newer group of the job saves in this directory: what this one would add must not count.

A corrupt or half-written checkpoint is not an error: it is skipped for the one before, with one warning in the log.
"""

from elasticjob_runtime.training.checkpoint.directory import (
    DEFAULT_KEEP,
    Checkpoint,
    CheckpointError,
    FencedError,
    load,
    save,
    steps,
)

__all__ = ["DEFAULT_KEEP", "Checkpoint", "CheckpointError", "FencedError", "load", "save", "steps"]
