"""Small checkpoints that know their step."""

from __future__ import annotations

import pathlib
import pickle

from elasticjob_runtime.training import checkpoint

STATE = {"weights": list(range(50)), "step": 0}


def save(directory: pathlib.Path, step: int, keep: int = checkpoint.DEFAULT_KEEP) -> pathlib.Path:
    return checkpoint.save(directory, step, lambda file: pickle.dump({**STATE, "step": step}, file), keep=keep)


def load_step(directory: pathlib.Path) -> int | None:
    """The step of the checkpoint that a resume starts from. Checks that name and content agree."""
    found = checkpoint.load(directory, pickle.load)
    if found is None:
        return None
    assert found.state == {**STATE, "step": found.step}
    return found.step


def files_in(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
